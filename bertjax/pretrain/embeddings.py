"""config.embeddings: a matrix that the token embedding begins as, such as what is known of each symbol."""

import dataclasses
import os
import pathlib
import zipfile

import numpy as np
import safetensors

from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes
from bertjax.text.tokenizer import Tokenizer

_FIX = 'write it with numpy.save, or as the only tensor of a safetensors file'
_WHAT = 'a matrix of floats in a .npy or .safetensors file'


@dataclasses.dataclass(frozen=True)
class GivenEmbeddings:
    """Rows of the token embedding: `matrix` float32 [N, D] for the ids `rows` [N]."""

    rows: np.ndarray
    matrix: np.ndarray


def read_embeddings(path: str, tokenizer: Tokenizer, width: int) -> GivenEmbeddings:
    """The embeddings of a file: a row a piece in the order of the vocabulary, or a row for each that is not special.

    Args:
      path: .npy, or .safetensors with one tensor.
      tokenizer: the run's.
      width: D.

    Raises:
      UserError: no such file, no matrix, one of another shape, or with values that are not finite.
    """
    file = pathlib.Path(os.path.expanduser(path))
    if not file.is_file():
        raise UserError('config.embeddings', f'no such file {path!r}', _WHAT, _FIX)
    matrix = _read(file)
    pieces = np.arange(tokenizer.vocab_size)
    ordinary = np.setdiff1d(pieces, tokenizer.special_ids)
    rows = {len(pieces): pieces, len(ordinary): ordinary}.get(len(matrix) if matrix.ndim == 2 else -1)
    if rows is None or matrix.shape[1] != width:
        expected = f'({len(pieces)}, {width}), pieces of the vocabulary and config.model.width'
        expected += f', or ({len(ordinary)}, {width}) without the special ones'
        raise UserError(path, f'a matrix of shape {matrix.shape}', expected, 'give a row a piece, in its order')
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise UserError(path, f'nan or inf in row {row}', 'finite numbers', 'correct the matrix')
    return GivenEmbeddings(rows, matrix.astype(np.float32))


def _read(file: pathlib.Path) -> np.ndarray:
    try:
        if file.suffix == '.safetensors':
            with safetensors.safe_open(file, 'numpy') as tensors:
                names = list(tensors.keys())
                if len(names) != 1:
                    raise UserError(str(file), f'{len(names)} tensors', 'one', _FIX)
                matrix = tensors.get_tensor(names[0])
        else:
            read_bytes(file, _WHAT, _FIX)  # raises what a disk refuses
            matrix = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise UserError(str(file), f'no matrix ({error})', _WHAT, _FIX) from None
    if not isinstance(matrix, np.ndarray) or not np.issubdtype(matrix.dtype, np.floating):
        raise UserError(str(file), f'numbers of the type {getattr(matrix, "dtype", type(matrix))}', _WHAT, _FIX)
    return matrix
