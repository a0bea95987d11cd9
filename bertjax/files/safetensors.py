"""Tensors written one by one as a safetensors file: the library itself wants all of them in memory."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.files.atomic import AtomicFile

_BYTES = {'I64': 8, 'F32': 4, 'I32': 4, 'F16': 2, 'BF16': 2}


class Tensor(NamedTuple):
    """A tensor that is made when its turn comes.

    Attributes:
      kind: 'F32', 'F16', 'BF16', 'I32' or 'I64'.
      shape: of all of it.
      parts: makes it, in parts along its first axis.
    """

    kind: str
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[np.ndarray]]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _BYTES[self.kind]


def write_tensors(
    path: epath.PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors in their order, whole or not at all; of each no more is in memory than a part.

    The format is that of safetensors' README: the length of the header as a little-endian uint64, the header as JSON,
    the bytes of the tensors.

    Args:
      path: of the file.
      tensors: by name. The library orders float32 by name.
      metadata: for the header.

    Raises:
      ValueError: parts that are not as long as their tensor.
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
                # As bytes: numpy has no buffers of bfloat16.
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
                written += part.nbytes
            if written != tensor.size:
                raise ValueError(f'{name}: {written} bytes, where {tensor.kind} {tensor.shape} has {tensor.size}')
