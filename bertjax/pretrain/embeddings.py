"""Reads config.embeddings: a matrix of initial token embeddings, such as known features of each symbol."""

import io
import zipfile

import jax.numpy as jnp
import numpy as np
import safetensors

from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes
from bertjax.remote.paths import user_path
from bertjax.text.tokenizer import Tokenizer

_FIX = 'write it with numpy.save, or as the only tensor of a safetensors file'
_EXPECTED = 'a matrix of floats in a .npy or .safetensors file'


def read_embeddings(path: str, tokenizer: Tokenizer, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the embeddings in a file.

    The file has one row for each piece of the vocabulary, or for each piece that is not special, in the order of ids.

    Args:
      path: A .npy file, or a .safetensors file with one tensor.
      width: The width of the model, D.

    Returns:
      The ids of the pieces in the file, int [N], and their embeddings, float32 [N, D].

    Raises:
      UserError: The file does not exist or has no matrix, or the matrix has a wrong shape or non-finite values.
    """
    matrix = read_matrix(path)
    pieces = np.arange(tokenizer.vocab_size)
    ordinary = np.setdiff1d(pieces, tokenizer.special_ids)
    rows = {len(pieces): pieces, len(ordinary): ordinary}.get(len(matrix) if matrix.ndim == 2 else -1)
    if rows is None or matrix.shape[1] != width:
        expected = f'({len(pieces)}, {width}) for all pieces and config.model.width'
        expected += f', or ({len(ordinary)}, {width}) without the special pieces'
        raise UserError(path, f'a matrix of shape {matrix.shape}', expected, 'write one row for each piece, in order')
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise UserError(path, f'nan or inf in row {row}', 'finite numbers', 'correct the matrix')
    return rows, matrix.astype(np.float32)


def read_matrix(path: str) -> np.ndarray:
    """Reads an array of floats from a .npy file, or from a .safetensors file with one tensor.

    Raises:
      UserError: The file does not exist or cannot be read, or has no such array.
    """
    file = user_path(path, 'config.embeddings')
    if not file.is_file():
        raise UserError('config.embeddings', f'no such file {path!r}', _EXPECTED, _FIX)
    try:
        if file.suffix == '.safetensors':
            with safetensors.safe_open(file, 'numpy') as tensors:
                names = list(tensors.keys())
                if len(names) != 1:
                    raise UserError(str(file), f'{len(names)} tensors', 'one', _FIX)
                matrix = tensors.get_tensor(names[0])
        else:
            matrix = np.load(io.BytesIO(read_bytes(file, _EXPECTED, _FIX)), allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise UserError(str(file), f'no matrix ({error})', _EXPECTED, _FIX) from None
    if not isinstance(matrix, np.ndarray) or not jnp.issubdtype(matrix.dtype, jnp.floating):  # also bfloat16
        raise UserError(str(file), f'numbers of the type {getattr(matrix, "dtype", type(matrix))}', _EXPECTED, _FIX)
    return matrix
