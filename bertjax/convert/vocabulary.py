"""Changes the token embedding of a model: adds rows for new pieces, or replaces rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from bertjax.convert.names import TOKEN_EMBEDDING, VOCABULARY
from bertjax.convert.trees import flat_paths
from bertjax.model.config import BertConfig


def add_piece_rows(
    params: Mapping[str, Any], model: BertConfig, origins: Mapping[int, Sequence[int]]
) -> dict[str, Any]:
    """Extends the parameters (NumPy arrays) of a BertForPreTraining to the vocabulary of `model`.

    `origins` is {id of a new piece: ids of old pieces}. The embedding, the output weights and the bias of a new piece
    are the means over these old pieces. Old pieces keep their rows. Added padding rows are zero.
    """
    flat = flat_paths(params)
    for path in flat.keys() & VOCABULARY:
        old = flat[path]
        flat[path] = new = np.zeros((model.padded_vocab_size, *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        for row, ids in origins.items():
            new[row] = old[list(ids)].mean(0)
    return unflatten_dict(flat, sep='/')


def set_embedding_rows(params: Mapping[str, Any], rows: np.ndarray, matrix: np.ndarray) -> dict[str, Any]:
    """Returns the parameters of a BertForPreTraining after replacing some rows of the token embedding.

    The parameters are on the host or on devices. `matrix` [N, D] has the new rows, and `rows`, int [N], their indices.
    """
    flat = flat_paths(params)
    table = flat[TOKEN_EMBEDDING]
    if isinstance(table, jax.Array):  # perhaps sharded over several hosts
        replace = jax.jit(lambda table, matrix: table.at[rows].set(matrix), out_shardings=table.sharding)
        flat[TOKEN_EMBEDDING] = replace(table, matrix.astype(table.dtype))
    else:
        flat[TOKEN_EMBEDDING] = np.array(table)
        flat[TOKEN_EMBEDDING][rows] = matrix
    return unflatten_dict(flat, sep='/')
