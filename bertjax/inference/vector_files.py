"""Reads the .npy files of run=extract with one vector per text, and the range of values of each dimension."""

import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax.config.ranges import format_value
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_object
from bertjax.model.quantization import quantize, value_ranges

_FIX = 'extract the vectors again'
# The facts in the metadata that must be equal for vectors to be comparable. A cosine does not depend on `normalize`.
_ENCODING = ('layers', 'combine', 'weights', 'pool', 'dense')


def calibrated_ranges(key: str, x: np.ndarray, width: int) -> np.ndarray:
    """Returns the minimum and the maximum of each dimension of calibration vectors, float32 [2, width].

    Raises a UserError that names `key` if `x` has another width, fewer than two vectors or a non-floating dtype, or if
    a dimension has an infinite value or no number. Rows of NaN stand for absent texts.
    """
    if x.ndim != 2 or x.shape[1] != width or len(x) < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        expected, fix = f'float32 [2 or more, {width}]', 'give float32 vectors of the same model'
        raise UserError(key, f'{x.dtype} {list(x.shape)}', expected, fix)
    ranges = value_ranges(x)
    if not (is_finite := np.isfinite(ranges).all(axis=0)).all():
        i = is_finite.argmin()
        found = f'values from {ranges[0, i]:g} to {ranges[1, i]:g} in dimension {i}'
        raise UserError(key, found, 'finite values', 'give finite vectors of the same model')
    return ranges


def _open_array(path: pathlib.Path, where: str = '', fix: str = _FIX) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode='r')
    except (OSError, ValueError) as error:
        raise UserError(where or str(path), f'{path} ({error})', 'a .npy file of vectors', fix) from None


def read_ranges(precision: str, calibration: str, width: int) -> np.ndarray | None:
    """Returns `calibrated_ranges` of the file `calibration`, or None for ''.

    Raises a UserError if the width does not fit the precision, or if the file is missing or unsuitable.
    """
    quantize(np.zeros((0, width), np.float32), precision, np.zeros((2, width)))  # checks the width
    if not calibration:
        return None
    key, path = 'config.extract.calibration', pathlib.Path(calibration).expanduser()
    return calibrated_ranges(key, _open_array(path, key, 'correct the path'), width)


class VectorShards:
    """The vectors of several .npy files as one array [N, D], which can be indexed by a row or a slice of rows.

    Attributes:
      dtype: The dtype, see `model.quantization.PRECISIONS`.
      ranges: float32 [2, D] for int8 vectors, None for others.
      encoding: The `encode.Encoding.facts` that must be equal for vectors to be comparable.
    """

    def __init__(
        self,
        paths: Iterable[pathlib.Path],
        ranges: np.ndarray | None = None,
        encoding: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._shards = list(map(_open_array, paths))
        *self._starts, count = itertools.accumulate(map(len, self._shards), initial=0)
        self.shape, self.dtype = (count, *self._shards[0].shape[1:]), self._shards[0].dtype
        self.ranges, self.encoding = ranges, encoding

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> np.ndarray:
        chosen = range(len(self))[rows]
        if isinstance(chosen, int):
            return self[chosen : chosen + 1][0]
        low, high = sorted((chosen[0], chosen[-1])) if chosen else (0, -1)
        parts = [
            shard[max(0, low - start) : max(0, high + 1 - start)]
            for shard, start in zip(self._shards, self._starts, strict=True)
        ]
        return np.concatenate(parts)[:: chosen.step]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)


def load_vectors(path: str | os.PathLike) -> VectorShards:
    """Opens the vectors (one per text) that run=extract wrote, as memory maps. `path` is the metadata NAME.npy.json.

    Raises:
      UserError: The file does not exist or does not describe vectors, or a file that it lists is missing or damaged.
    """
    if not isinstance(path, str | os.PathLike):
        fix = "for example bertjax.load_vectors('out/index/features/texts.npy.json')"
        raise UserError('path', format_value(path), 'a path', fix)
    path = pathlib.Path(path).expanduser()
    facts = read_json_object(path, f'give the path NAME.npy.json, or {_FIX}')
    if not facts.get('vectors'):
        raise UserError(str(path), 'no list of vectors', 'NAME.npy.json of run=extract, with pooling', _FIX)
    ranges = _open_array(path.with_name(facts['ranges'])) if 'ranges' in facts else None
    encoding = {name: facts[name] for name in _ENCODING if name in facts}
    return VectorShards(map(path.with_name, facts['vectors']), ranges, encoding)
