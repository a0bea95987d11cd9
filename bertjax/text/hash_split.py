"""Splits by hash: a text's own hash decides on which side it falls, whatever else there is and in whichever order."""

from typing import Literal


def hash64(digest: bytes, byteorder: Literal['little', 'big'] = 'big') -> int:
    """The first 8 bytes of a digest as an integer, uniform in 0..2**64-1."""
    return int.from_bytes(digest[:8], byteorder)


def hash_threshold(share: float) -> int:
    """The integer below which lies this share (0 to 1) of all 64-bit hashes."""
    return int(share * 2.0**64)
