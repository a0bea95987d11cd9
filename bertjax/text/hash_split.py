"""Splits data by hash, so that the split of a text does not depend on the other texts or their order."""

from typing import Literal


def hash64(digest: bytes, byteorder: Literal['little', 'big'] = 'big') -> int:
    """Returns the first 8 bytes of a digest as an integer, uniform in 0..2**64-1."""
    return int.from_bytes(digest[:8], byteorder)


def hash_threshold(share: float) -> int:
    """Returns the threshold below which the fraction `share` (0 to 1) of all 64-bit hashes lies."""
    return int(share * 2.0**64)
