"""Attention on CPU of longer sequences: one head of one row after the other, whose scores then stay in the cache.

The backward pass computes them again, so that no array [S, S] is kept between the two. Softmax weights are divided by
their sum behind the product with the values: fewer divisions, and the same up to rounding.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words, drop_weights
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import over_mesh, platform, undivided

PLATFORM = 'cpu'
LONG = 256  # tokens; up to so many `dot_product` is as fast or faster (docs/performance.md)


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A CPU, more than `LONG` tokens."""
    del query, mask, dropout_rate
    B, S, heads, _ = key.shape
    if platform() != PLATFORM:
        return 'it is for CPUs'
    if S <= LONG:
        return f'sequences of {S} tokens, it is for more than {LONG}'
    return undivided(B, heads)


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
    B, Q, H, _ = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # in a loop nothing could be merged with the forward pass
    def of_head(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        words: jax.Array,
        bias: jax.Array,
        places: jax.Array | None,
    ) -> jax.Array:
        """[Q, K], [S, K], [S, K], [2] or [Q, 3], [Q or 1, S], [S] -> [Q, K]."""
        scores = _product('QK,SK->QS', query, key) * query.shape[-1] ** -0.5 + bias
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        total = weights.sum(-1, keepdims=True)
        weights = drop_weights(weights.astype(value.dtype), rate, words, places)
        return (_product('QS,SK->QK', weights, value) / total).astype(value.dtype)

    def of_row(row: tuple[tuple[jax.Array, ...], AttentionMask]) -> jax.Array:
        heads, mask = row
        seen = jax.tree.map(lambda x: x[None], mask).visible(Q)[0, 0]  # [Q or 1, S]
        bias = jnp.where(seen, 0.0, NEGATIVE).astype(jnp.float32)
        return jax.lax.map(lambda head: of_head(*head, bias, mask.places), heads)  # [H, Q, K]

    def of_part(query: jax.Array, key: jax.Array, value: jax.Array, words: jax.Array, mask: AttentionMask) -> jax.Array:
        heads = (*(x.swapaxes(1, 2) for x in (query, key, value)), words)
        return jax.lax.map(of_row, (heads, mask)).swapaxes(1, 2)

    axes = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    of_words = ('act_batch', 'act_heads', *[None] * (words.ndim - 2))
    inputs = (axes, axes, axes, of_words, ('act_batch', 'act_length'))
    return over_mesh(of_part, inputs, axes)(query, key, value, words, mask)


def _product(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(form, x, y, preferred_element_type=jnp.float32)
