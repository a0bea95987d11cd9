"""Writes a safetensors file part by part, because the safetensors library needs all tensors in memory."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.files.atomic import AtomicFile

_BYTES = {'I64': 8, 'F32': 4, 'I32': 4, 'F16': 2, 'BF16': 2}


class Tensor(NamedTuple):
    """A tensor whose values are computed while it is written."""

    kind: str  # the dtype: 'F32', 'F16', 'BF16', 'I32' or 'I64'
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[np.ndarray]]  # yields consecutive parts of the tensor along its first axis

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * _BYTES[self.kind]


def write_tensors(
    path: epath.PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a file atomically, in the order of `tensors`, with one part of a tensor in memory at a time.

    The format (README of safetensors) is the length of the header as a little-endian uint64, the header as JSON, and
    the bytes of the tensors. Unlike this function, the safetensors library sorts tensors of the same dtype by name.

    Raises:
      ValueError: The parts do not have the size of their tensor.
    """
    header: dict[str, object] = {} if metadata is None else {'__metadata__': dict(metadata)}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.size
        header[name] = {'dtype': tensor.kind, 'shape': tensor.shape, 'data_offsets': [at, end]}
        at = end
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with AtomicFile(path) as file:
        file.write(len(text).to_bytes(8, 'little') + text)
        for name, tensor in tensors.items():
            written = 0
            for part in tensor.parts():
                # View as uint8, because numpy cannot export a bfloat16 array as a buffer.
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
                written += part.nbytes
            if written != tensor.size:
                raise ValueError(f'{name}: {written} bytes written, but {tensor.kind} {tensor.shape} has {tensor.size}')
