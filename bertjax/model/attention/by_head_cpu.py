"""Attention on CPU: one head of one row after the other, whose scores then stay in the cache.

A head is read where the projections wrote it, and its result takes the place of its queries: no array is laid out
anew. The backward pass computes the scores again, so that no array [S, S] is kept between the two. Softmax weights are
divided by their sum behind the product with the values: fewer divisions, and the same up to rounding.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words, drop_weights
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import indivisible_reason, over_mesh, platform

PLATFORM = 'cpu'
# Tokens; up to so many `dot_product` is as fast, in bfloat16 faster (docs/performance.md).
LONG = 96
LONG_BFLOAT16 = 256

_Arrays = tuple[jax.Array, ...]


class _Row(NamedTuple):
    """What the heads of a row share: the bias of its scores [Q or 1, S], and the keys' places [S], see
    `AttentionMask.places`."""

    bias: jax.Array
    places: jax.Array | None


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A CPU, more than `LONG` tokens, in bfloat16 more than `LONG_BFLOAT16`."""
    del mask, dropout_rate
    B, S, heads, _ = key.shape
    if platform() != PLATFORM:
        return 'it is for CPUs'
    long = LONG_BFLOAT16 if query.dtype == jnp.bfloat16 else LONG
    if long >= S:
        return f'sequences of {S} tokens, it is for more than {long}'
    return indivisible_reason(B, heads)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout: Dropout | None,
) -> jax.Array:
    """See `select.Implementation`."""
    B, _, H, _ = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)
    axes = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    of_words = ('act_batch', 'act_heads', *[None] * (words.ndim - 2))
    inputs = (axes, axes, axes, of_words, ('act_batch', 'act_length'))
    part = functools.partial(_attend, rate)
    return over_mesh(part, inputs, axes)(query, key, value, words, mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    rate: float, query: jax.Array, key: jax.Array, value: jax.Array, words: jax.Array, mask: AttentionMask
) -> jax.Array:
    """`attend` of one device's own part, [B, Q, H, K]; `words` see `drop_weights`."""

    def one(heads: _Arrays, words: jax.Array, row: _Row, mixed: _Arrays) -> _Arrays:
        del mixed  # nothing of this head is there yet
        return (_mixed(rate, *heads, words, row),)

    return _by_head(one, (query, key, value), words, mask, (query,))[0]


def _forward(
    rate: float, query: jax.Array, key: jax.Array, value: jax.Array, words: jax.Array, mask: AttentionMask
) -> tuple[jax.Array, tuple]:
    return _attend(rate, query, key, value, words, mask), (query, key, value, words, mask)


def _gradient(rate: float, saved: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, words, mask = saved

    def one(heads: _Arrays, words: jax.Array, row: _Row, written: _Arrays) -> _Arrays:
        cotangent = written[0]
        return jax.vjp(lambda *heads: _mixed(rate, *heads, words, row), *heads)[1](cotangent)

    # Gradients take the places of the cotangent, the keys and the values.
    return *_by_head(one, (query, key, value), words, mask, (cotangent, key, value)), None, None


_attend.defvjp(_forward, _gradient)


def _mixed(rate: float, query: jax.Array, key: jax.Array, value: jax.Array, words: jax.Array, row: _Row) -> jax.Array:
    """One head's attention: [Q, K], [S, K], [S, K], [2] or [Q, 3], the row's -> [Q, K]."""
    scores = _product('QK,SK->QS', query, key) * query.shape[-1] ** -0.5 + row.bias
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = weights.sum(-1, keepdims=True)
    weights = drop_weights(weights.astype(value.dtype), rate, words, row.places)
    return (_product('QS,SK->QK', weights, value) / total).astype(value.dtype)


def _product(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(form, x, y, preferred_element_type=jnp.float32)


def _by_head(
    one: Callable[[_Arrays, jax.Array, _Row, _Arrays], _Arrays],
    read: _Arrays,
    words: jax.Array,
    mask: AttentionMask,
    written: _Arrays,
) -> _Arrays:
    """`written`, arrays [B, ..., H, K], when each head of each row in them is what `one` makes of it.

    `one` is given a head's part of `read`, [..., K], its words [2] or [Q, 3], its row, and what is in its place in
    `written`.
    """
    B, Q, H, K = read[0].shape
    flat = lambda x: x.reshape(B, -1, H * K)  # noqa: E731
    read, written = tuple(map(flat, read)), tuple(map(flat, written))

    def of_head(b: jax.Array, row: _Row, h: jax.Array, written: _Arrays) -> _Arrays:
        def part(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice(x, (b, 0, h * K), (1, x.shape[1], K))[0]

        found = one(tuple(map(part, read)), words[b, h], row, tuple(map(part, written)))
        put = lambda x, new: jax.lax.dynamic_update_slice(x, new[None], (b, 0, h * K))  # noqa: E731
        return tuple(map(put, written, found))

    def of_row(b: jax.Array, written: _Arrays) -> _Arrays:
        own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, b, 1), mask)
        bias = jnp.where(own.visible(Q)[0, 0], 0.0, NEGATIVE).astype(jnp.float32)
        row = _Row(bias, None if own.places is None else own.places[0])
        return jax.lax.fori_loop(0, H, functools.partial(of_head, b, row), written)

    return tuple(x.reshape(B, -1, H, K) for x in jax.lax.fori_loop(0, B, of_row, written))
