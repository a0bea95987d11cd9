"""Bytes of what an instruction gives, from its shape as text: `f32[64,128]{1,0:T(8,128)}`, or several in a tuple."""

import dataclasses
import math
import re

# Of XLA's primitive types, in bits; those that are no numbers (token, opaque) take nothing.
_BITS = {'pred': 8, 'bf16': 16, 'f16': 16, 'f32': 32, 'f64': 64, 'c64': 64, 'c128': 128}
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?')
_TILE = re.compile(r'T\(([\d,]+)\)')
_SPACE = re.compile(r'S\((\d+)\)')


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape.

    Attributes:
      dtype: XLA's name for it, such as 'bf16'.
      dims: its dimensions.
      layout: dimensions from the one that lies closest together to the farthest, and the tile; as it is written.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str

    def __str__(self) -> str:
        return f'{self.dtype}[{",".join(map(str, self.dims))}]'

    @property
    def in_hbm(self) -> bool:
        """Whether it lies in the chip's large memory; other spaces are on the chip itself, or hold no data."""
        space = _SPACE.search(self.layout)
        return space is None or space.group(1) == '0'

    @property
    def item_bits(self) -> int:
        """Of one number."""
        if self.dtype in _BITS:
            return _BITS[self.dtype]
        bits = re.search(r'\d+', self.dtype)  # s32, u8, f8e4m3fn, s4
        return int(bits.group()) if bits else 0

    @property
    def bytes(self) -> int:
        """Of its numbers."""
        return math.prod(self.dims) * self.item_bits // 8

    @property
    def stored_bytes(self) -> int:
        """What it takes in memory: the dimensions that lie closest together are filled up to whole tiles."""
        tile = _TILE.search(self.layout)
        order = self.layout.partition(':')[0]
        dims = list(self.dims)
        if tile and order:
            minor = [int(i) for i in order.split(',')]
            for i, size in zip(minor, reversed([int(n) for n in tile.group(1).split(',')]), strict=False):
                dims[i] = -(-dims[i] // size) * size
        return math.prod(dims) * self.item_bits // 8


def arrays(shape: str) -> list[Array]:
    """The arrays of a shape, of nested tuples too, in their order."""
    found = _ARRAY.findall(re.sub(r'/\*.*?\*/', '', shape))
    return [Array(dtype, tuple(int(n) for n in dims.split(',') if n), layout) for dtype, dims, layout in found]


def total_bytes(shape: str) -> int:
    """Of all arrays of a shape."""
    return sum(array.bytes for array in arrays(shape))
