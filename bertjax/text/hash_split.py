"""Splits data by hash. The split of a text depends only on its hash, not on the other texts or their order."""

from typing import Literal


def hash64(digest: bytes, byteorder: Literal['little', 'big'] = 'big') -> int:
    """Returns the first 8 bytes of a digest as an integer, uniform in 0..2**64-1."""
    return int.from_bytes(digest[:8], byteorder)


def hash_threshold(share: float) -> int:
    """Returns the threshold such that a fraction `share` (0 to 1) of all 64-bit hashes is below it."""
    return int(share * 2.0**64)
