"""Counter-based random numbers and permutations: each number is a hash of (seed, stream, n, position).

A stateful generator must draw n - 1 numbers before number n. With hashes, any process can make any example directly,
and a whole batch takes a few array operations.

The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators")
with the constants of Stafford's "Mix13". The numbers of (seed, stream, n) at positions 0, 1, 2, ... are a SplitMix64
sequence, which starts at a key mixed from (seed, stream, n).
"""

import enum

import numpy as np
import numpy.typing as npt

_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6


class Stream(enum.IntEnum):
    """The purpose of a random number. Each use has its own stream. Never change the number of a stream."""

    PHASE = 1
    SHORT = 2
    TARGET = 3
    SPLIT = 4
    NEXT = 5
    FIRST = 6
    ORDER = 7
    FEISTEL = 8
    OTHER_DOCUMENT = 9
    OTHER_SENTENCE = 10
    TRUNCATE_A = 11
    TRUNCATE_B = 12
    SWAP = 13
    MASK_CHOICE = 14
    MASK_ACTION = 15
    MASK_TOKEN = 16
    MASK_SPAN = 17
    TASK_ORDER = 18
    BATCH_ORDER = 19
    SAMPLE = 20
    ROW_ORDER = 21
    CAUSAL = 22
    CORPUS = 23
    PIECE = 24
    AUGMENT = 31
    AUGMENT_WORD = 32


def _mix(x: np.ndarray) -> np.ndarray:
    """Mixes an array of uint64 in place."""
    scratch = x >> np.uint64(30)
    x ^= scratch
    x *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(x, np.uint64(27), out=scratch)
    x ^= scratch
    x *= np.uint64(0x94D049BB133111EB)
    np.right_shift(x, np.uint64(31), out=scratch)
    x ^= scratch
    return x


def _unsigned(x: npt.ArrayLike) -> np.ndarray:
    x = np.asarray(x)
    return x if x.dtype == np.uint64 else x.astype(np.int64).view(np.uint64)


def hash_bits(seed: int, stream: int, n: npt.ArrayLike, position: npt.ArrayLike = 0) -> np.ndarray:
    """Returns 64 random bits for each (seed, stream, n, position), as uint64.

    Only the low 64 bits of `seed` count. `stream` is a `Stream` or another constant. `n` and `position` are integers
    that broadcast to the shape of the result. `n` is usually the number of an example or a row.
    """
    n, position = _unsigned(n), _unsigned(position)
    # The overflow is intended. The seed is an array, because numpy warns about the overflow of scalars.
    start = _mix(np.array([int(seed) & _BITS], np.uint64)) + np.uint64((int(stream) + 1) * _GOLDEN & _BITS)
    keys = _mix(np.atleast_1d(n) * np.uint64(_GOLDEN) + _mix(start))
    bits = _mix(keys + (np.atleast_1d(position) + np.uint64(1)) * np.uint64(_GOLDEN))
    return bits.reshape(np.broadcast_shapes(n.shape, position.shape))


def hash_int(seed: int, stream: int, n: int) -> int:
    """Returns `hash_bits` of one number as a Python int, to derive one seed from another."""
    return int(hash_bits(seed, stream, n))


def uniform(seed: int, stream: int, n: npt.ArrayLike, position: npt.ArrayLike = 0) -> np.ndarray:
    """Draws a float64 in [0, 1), a multiple of 2**-53, for each (seed, stream, n, position)."""
    return (hash_bits(seed, stream, n, position) >> np.uint64(11)) * 2.0**-53


def randint(bound: npt.ArrayLike, seed: int, stream: int, n: npt.ArrayLike, position: npt.ArrayLike = 0) -> np.ndarray:
    """Draws an int64 in 0..bound-1 for each (seed, stream, n, position). `bound` (positive, below 2**53) broadcasts."""
    return (uniform(seed, stream, n, position) * np.asarray(bound)).astype(np.int64)  # always below `bound`


def permute(index: npt.ArrayLike, size: npt.ArrayLike, key: npt.ArrayLike) -> np.ndarray:
    """Applies a pseudo-random permutation of 0..size-1 to each index, without storing the permutation.

    The permutation is a Feistel network over pairs (left, right) of Z_a x Z_b, where a and b are about sqrt(size) and
    a·b >= size. Each round adds a hash of one half to the other half. A round can be inverted, so the network is a
    bijection for every size. A result outside 0..size-1 goes through the network again, until it is inside (cycle
    walking). Few results are outside, because a·b - size < a.

    Args:
      index: int64 [N], each in 0..size-1.
      size: int64, a scalar or [N], from 1 to 2**62.
      key: uint64, a scalar or [N], the seed of the permutation.

    Returns:
      int64 [N].
    """
    index, size, key = np.broadcast_arrays(np.atleast_1d(np.asarray(index, np.int64)), size, _unsigned(key))
    size = size.astype(np.int64)
    a = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.int64)
    b = -(-size // a)
    a, b, key = a.view(np.uint64), b.view(np.uint64), np.ascontiguousarray(key)
    result = _feistel(index.astype(np.uint64), a, b, key)
    outside = np.nonzero(result >= size.view(np.uint64))[0]
    while outside.size:
        result[outside] = _feistel(result[outside], a[outside], b[outside], key[outside])
        outside = outside[result[outside] >= size.view(np.uint64)[outside]]
    return result.view(np.int64)


def _feistel(x: np.ndarray, a: np.ndarray, b: np.ndarray, key: np.ndarray) -> np.ndarray:
    left, right = x // b, x % b
    for i in range(_ROUNDS):
        if i % 2:
            right = (right + hash_bits(i, Stream.FEISTEL, key, left) % b) % b
        else:
            left = (left + hash_bits(i, Stream.FEISTEL, key, right) % a) % a
    return left * b + right
