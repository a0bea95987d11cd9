"""Changes the token embedding of a model: adds rows for new pieces, or replaces rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.model.config import BertConfig


def add_piece_rows(
    params: Mapping[str, Any], model: BertConfig, origins: Mapping[int, Sequence[int]]
) -> dict[str, Any]:
    """Extends the parameters (NumPy arrays) of a BertForPreTraining to the vocabulary of `model`.

    `origins` is {id of a new piece: ids of old pieces}. The embedding, the output weights and the bias of a new piece
    are the means over these old pieces. Old pieces keep their rows. Added padding rows are zero.
    """

    def extend(table: np.ndarray) -> np.ndarray:
        new = np.zeros((model.padded_vocab_size, *table.shape[1:]), table.dtype)
        new[: len(table)] = table
        for row, ids in origins.items():
            new[row] = table[list(ids)].mean(0)
        return new

    mlm = {**params['mlm'], 'bias': extend(params['mlm']['bias'])}
    if 'decoder' in mlm:  # an output matrix that is not the token embedding
        mlm['decoder'] = {'embedding': extend(mlm['decoder']['embedding'])}
    return {**_with_table(params, extend(_table(params))), 'mlm': mlm}


def set_embedding_rows(params: Mapping[str, Any], rows: np.ndarray, matrix: np.ndarray) -> dict[str, Any]:
    """Returns the parameters of a BertForPreTraining after replacing some rows of the token embedding.

    The parameters are on the host or on devices. `matrix` [N, D] has the new rows, and `rows`, int [N], their indices.
    """
    table = _table(params)
    if isinstance(table, jax.Array):  # perhaps sharded over several hosts
        replace = jax.jit(lambda table, matrix: table.at[rows].set(matrix), out_shardings=table.sharding)
        return _with_table(params, replace(table, matrix.astype(table.dtype)))
    new = np.array(table)
    new[rows] = matrix
    return _with_table(params, new)


def _table(params: Mapping[str, Any]) -> np.ndarray:
    return params['encoder']['embeddings']['token']['embedding']


def _with_table(params: Mapping[str, Any], table: np.ndarray) -> dict[str, Any]:
    embeddings = {**params['encoder']['embeddings'], 'token': {'embedding': table}}
    return {**params, 'encoder': {**params['encoder'], 'embeddings': embeddings}}
