"""Dropout: which values are dropped is a function of (seed, phase, site, example number, position) and nothing else.

Not of the mesh, the batch size, the parts of a batch, or what computes it: a kernel that hashes the same words and
counters drops the same values. Nothing is stored for the backward pass, which hashes again. A hash is two
multiplications and a few shifts in the loop that uses the value; a generator's bits would be arrays in memory.
"""

import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

_GOLDEN = 0x9E3779B9  # 2^32 / the golden ratio: neighbours that are multiplied by it are far apart
# "lowbias32", of 32-bit mixers with two multiplications the one with the least bias that its author's search found
# (C. Wellons, "Prospecting for hash functions", 2018).
_SHIFTS, _FACTORS = (16, 15, 16), (0x7FEB352D, 0x846CA68B)


class Site(enum.IntEnum):
    """Where values are dropped, within a layer or a head. Never renumber one."""

    EMBEDDINGS = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    MLP_OUTPUT = 3
    HEAD = 4
    BILSTM = 5


def _mix(x: jax.Array) -> jax.Array:
    """uint32, any shape: a permutation of all 32-bit numbers that looks random."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> _SHIFTS[-1])


class Dropout(struct.PyTreeNode):
    """What decides about the dropped values of a batch.

    Attributes:
      seed: uint32 scalar, of the run, then of a phase, a layer, a site: see `at`.
      numbers: uint32 [B], of the example in each row: the low 32 bits of its number in the phase; or [B, S], of that at
        each position of a row that has several.
      places: uint32 [B, S], of such rows: each position's place in its own sequence.
    """

    seed: jax.Array
    numbers: jax.Array
    places: jax.Array | None = None

    @classmethod
    def from_key(cls, key: jax.Array, rows: int) -> 'Dropout':
        """For a loop that has keys in place of numbered examples: the rows of a batch are numbered from 0."""
        return cls(jax.random.bits(key), jnp.arange(rows, dtype=jnp.uint32))

    def fold_in(self, place: int | jax.Array) -> 'Dropout':
        """That of a place within this one: a phase, a layer, a `Site`; whole numbers from 0."""
        place = jnp.asarray(place).astype(jnp.uint32)
        return self.replace(seed=_mix(self.seed + (place + 1) * jnp.uint32(_GOLDEN)))

    def repeated(self, count: int) -> 'Dropout':
        """[B] -> [B·count], for rows that are several sequences, one after the other."""
        numbers = _mix(self.numbers)[:, None] + jnp.arange(count, dtype=jnp.uint32)
        return self.replace(numbers=numbers.reshape(-1))

    def words(self, heads: int | None = None) -> jax.Array:
        """uint32 [B, 2], or [B, heads, 2]: all that the values of a row, or of one of its heads, depend on.

        Of rows that have several examples [B, S, 3], or [B, S, heads, 3], of each position, the last being its place.
        """
        rows, places = _mix(self.seed ^ _mix(self.numbers)), self.places
        if heads is not None:
            rows = _mix(rows[..., None] + jnp.arange(heads, dtype=jnp.uint32) * jnp.uint32(_GOLDEN))
            places = None if places is None else jnp.broadcast_to(places[..., None], rows.shape)
        words = [rows, _mix(rows + jnp.uint32(_GOLDEN))]
        return jnp.stack(words if places is None else [*words, places], -1)


def threshold(rate: float) -> int:
    """The hash from which on a value is kept: `rate` as a multiple of 2^-32."""
    return round(rate * 2**32)


def hashed(first: jax.Array, second: jax.Array, counters: jax.Array) -> jax.Array:
    """The 32 random bits that a value's fate is read from; pure arithmetic, for kernels too.

    Args:
      first, second: uint32, of `Dropout.words`; they broadcast against the counters.
      counters: uint32, of the values of a row or head.
    """
    # The second word enters in the middle, so that no two rows go through the same numbers in another order. By a last
    # shift only low bits would gain, at which a comparison hardly looks.
    x = counters ^ first
    x = (x ^ (x >> _SHIFTS[0])) * jnp.uint32(_FACTORS[0]) + second
    return (x ^ (x >> _SHIFTS[1])) * jnp.uint32(_FACTORS[1])


def within(dropout: Dropout | None, place: int | jax.Array | None) -> Dropout | None:
    """`dropout.fold_in(place)`, where there is any."""
    return None if dropout is None else dropout.fold_in(place)


def drop(x: jax.Array, rate: float, dropout: Dropout | None, site: Site) -> jax.Array:
    """`x` [B, ...] with a share `rate` of its values zeroed and the rest scaled up; `x` itself without `dropout`.

    A value's counter is its place in the row, so that it does not depend on how many positions follow it; of a row that
    has several examples, its place in its own.
    """
    if dropout is None or rate == 0.0:
        return x
    return _drop(x, rate, _of_rows if dropout.places is None else _of_positions, dropout.fold_in(site).words())


def drop_attention(
    weights: jax.Array, rate: float, dropout: Dropout | None, places: jax.Array | None = None
) -> jax.Array:
    """`drop` of attention weights [B, H, Q, S]. The counter of query q and key k is 65,536 q + k, of each head anew.

    Where rows have several examples, q and k are places in the query's own: those of queries [B, Q], as the numbers,
    are in `dropout`, and `places` are those of the keys [B, S].
    """
    if dropout is None or rate == 0.0:
        return weights
    words = attention_words(dropout, weights.shape[1])
    return drop_weights(weights, rate, words, None if places is None else places[:, None])


def drop_weights(weights: jax.Array, rate: float, words: jax.Array, places: jax.Array | None = None) -> jax.Array:
    """`drop_attention` of weights [..., Q, S], by uint32 words [..., 2] of `attention_words`; or by [..., Q, 3] and the
    keys' `places` [..., S]."""
    if not rate:
        return weights
    return _drop(weights, rate, *((_of_heads, words) if places is None else (_of_queries, (words, places))))


def attention_words(dropout: Dropout, heads: int) -> jax.Array:
    """uint32 [B, heads, 2], what `drop_attention` hashes with a counter; where rows have several examples [B, heads, Q,
    3], the last being the place of the query."""
    words = dropout.fold_in(Site.ATTENTION).words(heads)
    return words if dropout.places is None else words.swapaxes(1, 2)


def _of_rows(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    place = jnp.uint32(0)
    for axis in range(1, len(shape)):
        place = place * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    first, second = jnp.moveaxis(words.reshape(-1, *[1] * (len(shape) - 1), 2), -1, 0)
    return hashed(first, second, place)


def _of_positions(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    first, second, place = jnp.moveaxis(words[..., None, :], -1, 0)  # [B, S, 1] each
    return hashed(first, second, place * jnp.uint32(shape[-1]) + jax.lax.broadcasted_iota(jnp.uint32, shape, 2))


def _of_heads(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    query, key = (jax.lax.broadcasted_iota(jnp.uint32, shape[-2:], axis) for axis in (0, 1))
    first, second = jnp.moveaxis(words[..., None, None, :], -1, 0)
    return hashed(first, second, (query << 16) | key)


def _of_queries(words: tuple[jax.Array, jax.Array], shape: tuple[int, ...]) -> jax.Array:
    first, second, query = jnp.moveaxis(words[0][..., None, :], -1, 0)  # [..., Q, 1] each
    return jnp.broadcast_to(hashed(first, second, (query << 16) | words[1][..., None, :]), shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
@jax.named_scope('dropout')  # for those who read the compiled step: bertjax/cost/estimate.py
def _drop(x: jax.Array, rate: float, bits, words: Any) -> jax.Array:
    least = threshold(rate)
    return jnp.where(bits(words, x.shape) >= jnp.uint32(least), x / (1.0 - least / 2**32), jnp.zeros((), x.dtype))


def _drop_forward(x: jax.Array, rate: float, bits, words: Any) -> tuple[jax.Array, Any]:
    return _drop(x, rate, bits, words), words


@jax.named_scope('dropout')
def _drop_backward(rate: float, bits, words: Any, cotangent: jax.Array) -> tuple[jax.Array, None]:
    return _drop(cotangent, rate, bits, words), None


_drop.defvjp(_drop_forward, _drop_backward)
