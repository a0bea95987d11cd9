"""Splits data by hash: the hash of a text decides its side of a split, independent of other texts and their order."""

from typing import Literal


def hash64(digest: bytes, byteorder: Literal['little', 'big'] = 'big') -> int:
    """Returns the first 8 bytes of a digest as an integer, uniform in 0..2**64-1."""
    return int.from_bytes(digest[:8], byteorder)


def hash_threshold(share: float) -> int:
    """Returns the integer such that `share` (0 to 1) of all 64-bit hashes are below it."""
    return int(share * 2.0**64)
