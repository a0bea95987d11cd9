"""Dropout whose mask is a pure function of (seed, phase, layer, site, example number, index in the example).

The mask therefore does not depend on the mesh, the batch size, gradient accumulation or the implementation of
attention. The backward pass computes the hashes again instead of storing the mask. A hash costs two multiplications and
a few shifts in the loop that uses the value, whereas a random number generator would write its bits to memory.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

_GOLDEN = 0x9E3779B9  # 2^32 / the golden ratio: multiplication by it spreads neighboring integers
# "lowbias32": the 32-bit mixer with two multiplications and the least bias in the search of C. Wellons
# ("Prospecting for hash functions", 2018).
_SHIFTS, _MULTIPLIERS = (16, 15, 16), (0x7FEB352D, 0x846CA68B)


class Site(enum.IntEnum):
    """The operation that drops values. The numbers are part of the hash: never change a number."""

    EMBEDDINGS = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    MLP_OUTPUT = 3
    HEAD = 4
    BILSTM = 5


def _mix(x: jax.Array) -> jax.Array:
    """Applies a pseudo-random permutation of the 32-bit integers to each value of a uint32 array."""
    for shift, factor in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> _SHIFTS[-1])


def fold_seed(seed: jax.Array | np.ndarray, index: int | jax.Array) -> jax.Array:
    """Derives the dropout seed of a phase, a layer or a `Site`, given its index from 0. Returns uint32 values."""
    index = jnp.asarray(index).astype(jnp.uint32)
    return _mix(seed + (index + 1) * jnp.uint32(_GOLDEN))


class Dropout(struct.PyTreeNode):
    """The inputs of the hash that decides which values of a batch are dropped. All arrays are uint32."""

    seed: jax.Array  # a scalar: the seed of the run, with the phase, layer and site folded in by `fold_seed`
    # [B], the low 32 bits of each row's example number in the phase; [B, S] with a PackedLayout (row_packing.py)
    example_ids: jax.Array
    positions: jax.Array | None = None  # [B, S], each position's index in its sequence; None without a PackedLayout

    @classmethod
    def from_key(cls, key: jax.Array, rows: int) -> 'Dropout':
        """Creates dropout from a JAX key, for a loop without example numbers."""
        return cls(jax.random.bits(key, dtype=jnp.uint32), jnp.arange(rows, dtype=jnp.uint32))

    def fold_in(self, index: int | jax.Array) -> 'Dropout':
        """Derives the dropout of a layer or a `Site` by `fold_seed`."""
        return self.replace(seed=fold_seed(self.seed, index))

    def repeat(self, count: int) -> 'Dropout':
        """Derives the dropout of B·count sequences from that of B examples with `count` sequences each."""
        example_ids = _mix(self.example_ids)[:, None] + jnp.arange(count, dtype=jnp.uint32)
        return self.replace(example_ids=example_ids.reshape(-1))

    def select(self, function: Callable[[jax.Array], jax.Array]) -> 'Dropout':
        """Derives the dropout of the positions that `function` selects from arrays [B, S]. Only for a PackedLayout."""
        return self.replace(example_ids=function(self.example_ids), positions=function(self.positions))

    def words(self, heads: int | None = None) -> jax.Array:
        """Computes the words: numbers that `hash_words` hashes together with the counter of each value.

        The result is uint32 [B, 2], or [B, heads, 2] with `heads`. If `positions` is set, it is [B, S, 3] or
        [B, S, heads, 3], and the third word is the position.
        """
        rows, positions = _mix(self.seed ^ _mix(self.example_ids)), self.positions
        if heads is not None:
            rows = _mix(rows[..., None] + jnp.arange(heads, dtype=jnp.uint32) * jnp.uint32(_GOLDEN))
            positions = None if positions is None else jnp.broadcast_to(positions[..., None], rows.shape)
        words = [rows, _mix(rows + jnp.uint32(_GOLDEN))]
        return jnp.stack(words if positions is None else [*words, positions], -1)


def threshold(rate: float) -> int:
    """Returns a number between 0 and 2^32. A value is dropped if its 32-bit hash is below this number."""
    return round(rate * 2**32)


def hash_words(first: jax.Array, second: jax.Array, counters: jax.Array) -> jax.Array:
    """Hashes two words and the counter of each value to 32 pseudo-random bits, with arithmetic that Pallas supports.

    The words come from `Dropout.words`, and broadcast against the counters. All arrays are uint32.
    """
    # If both words were used before the first multiplication, two rows could have the same hashes in another order.
    # The last shift of `_mix` is left out: it improves only low bits, which hardly affect the comparison.
    x = counters ^ first
    x = (x ^ (x >> _SHIFTS[0])) * jnp.uint32(_MULTIPLIERS[0]) + second
    return (x ^ (x >> _SHIFTS[1])) * jnp.uint32(_MULTIPLIERS[1])


def drop(x: jax.Array, rate: float, dropout: Dropout | None, site: Site) -> jax.Array:
    """Zeroes the fraction `rate` of the values of x [B, ...] and scales up the rest. Returns x if `dropout` is None.

    The counter of a value is its index in the row, or in its sequence with a PackedLayout.
    """
    if dropout is None or rate == 0.0:
        return x
    return _drop(x, rate, _row_bits if dropout.positions is None else _position_bits, dropout.fold_in(site).words())


def drop_weights(weights: jax.Array, rate: float, words: jax.Array, positions: jax.Array | None = None) -> jax.Array:
    """Drops attention weights [..., Q, S]. The counter for query q and key k is 65,536 q + k in every head.

    `words` comes from `attention_words`: [..., 2], or [..., Q, 3] with a PackedLayout. In this case, q and k are
    indices within a sequence, and `positions`, uint32 [..., S], has the index of each key.
    """
    if not rate:
        return weights
    return _drop(weights, rate, *((_head_bits, words) if positions is None else (_query_bits, (words, positions))))


def attention_words(dropout: Dropout, heads: int) -> jax.Array:
    """Computes the words for `drop_weights`: uint32 [B, heads, 2], or [B, heads, Q, 3] with a PackedLayout."""
    words = dropout.fold_in(Site.ATTENTION).words(heads)
    return words if dropout.positions is None else words.swapaxes(1, 2)


def _row_bits(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    counter = jnp.uint32(0)
    for axis in range(1, len(shape)):
        counter = counter * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    first, second = jnp.moveaxis(words.reshape(-1, *[1] * (len(shape) - 1), 2), -1, 0)
    return hash_words(first, second, counter)


def _position_bits(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    first, second, position = jnp.moveaxis(words[..., None, :], -1, 0)  # [B, S, 1] each
    return hash_words(first, second, position * jnp.uint32(shape[-1]) + jax.lax.broadcasted_iota(jnp.uint32, shape, 2))


def _head_bits(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    query, key = (jax.lax.broadcasted_iota(jnp.uint32, shape[-2:], axis) for axis in (0, 1))
    first, second = jnp.moveaxis(words[..., None, None, :], -1, 0)
    return hash_words(first, second, (query << 16) | key)


def _query_bits(words: tuple[jax.Array, jax.Array], shape: tuple[int, ...]) -> jax.Array:
    first, second, query = jnp.moveaxis(words[0][..., None, :], -1, 0)  # [..., Q, 1] each
    return jnp.broadcast_to(hash_words(first, second, (query << 16) | words[1][..., None, :]), shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
@jax.named_scope('dropout')  # bertjax/cost/estimate.py finds the operations by this name
def _drop(x: jax.Array, rate: float, bits, words: Any) -> jax.Array:
    least = threshold(rate)
    scaled = (x.astype(jnp.float32) / (1.0 - least / 2**32)).astype(x.dtype)  # bfloat16 would round the divisor
    return jnp.where(bits(words, x.shape) >= jnp.uint32(least), scaled, jnp.zeros((), x.dtype))


@jax.named_scope('dropout')
def _drop_backward(rate: float, bits, words: Any, cotangent: jax.Array) -> tuple[jax.Array, None]:
    return _drop(cotangent, rate, bits, words), None


_drop.defvjp(lambda x, rate, bits, words: (_drop(x, rate, bits, words), words), _drop_backward)
