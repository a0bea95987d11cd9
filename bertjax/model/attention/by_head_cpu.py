"""Attention on CPU, one head of one row at a time, so that the scores stay in the cache.

A head is read directly from the output of the projections, so no array is transposed. The result of each head
overwrites the queries of that head in a copy of the queries. The backward pass recomputes the scores instead of saving
an [S, S] array. To save divisions, the division by the softmax sum follows the product with the values.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.model.attention.dot_product import einsum_float32
from bertjax.model.attention.implementation import Implementation, Kernel
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import drop_weights
from bertjax.model.layers import NEGATIVE

# `dot_product` is at least as fast up to these lengths in tokens.
MAX_PLAIN_LENGTH = 96
MAX_PLAIN_LENGTH_BFLOAT16 = 256

_Arrays = tuple[jax.Array, ...]
# The inputs that all heads of a row share: the bias of the scores, float32 [Q or 1, S], and `AttentionMask.positions`,
# int [S] or None.
_Row = tuple[jax.Array, jax.Array | None]


class ByHeadCpu(Implementation):
    """Attention for rows of more than MAX_PLAIN_LENGTH tokens, or MAX_PLAIN_LENGTH_BFLOAT16 tokens in bfloat16."""

    PLATFORM = 'cpu'
    SUPPORTS_ANY_MASK = True

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        longest_plain = MAX_PLAIN_LENGTH_BFLOAT16 if key.dtype == jnp.bfloat16 else MAX_PLAIN_LENGTH
        if longest_plain >= key.shape[1]:
            return f'sequences of {key.shape[1]} tokens, but it needs more than {longest_plain}'
        return super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        return functools.partial(_attend, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    rate: float, query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array
) -> jax.Array:
    """Computes attention for the rows and heads of one device -> [B, Q, H, K]. See `drop_weights` for `words`."""

    def attend_head(heads: _Arrays, words: jax.Array, row: _Row, output: _Arrays) -> _Arrays:
        return (_attend_head(rate, *heads, words, row),)

    return _by_head(attend_head, (query, key, value), words, mask, (query,))[0]


def _gradient(rate: float, residuals: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, mask, words = residuals

    def attend_head(heads: _Arrays, words: jax.Array, row: _Row, written: _Arrays) -> _Arrays:
        return jax.vjp(lambda *heads: _attend_head(rate, *heads, words, row), *heads)[1](written[0])

    # The gradients are written over the cotangent and over copies of the keys and the values.
    return *_by_head(attend_head, (query, key, value), words, mask, (cotangent, key, value)), None, None


_attend.defvjp(lambda rate, *inputs: (_attend(rate, *inputs), inputs), _gradient)


def _attend_head(
    rate: float, query: jax.Array, key: jax.Array, value: jax.Array, words: jax.Array, row: _Row
) -> jax.Array:
    """Attends with one head: query [Q, K], key and value [S, K], words [2] or [Q, 3] -> [Q, K]."""
    bias, positions = row
    scores = einsum_float32('QK,SK->QS', query, key) * query.shape[-1] ** -0.5 + bias
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = weights.sum(-1, keepdims=True)
    weights = drop_weights(weights.astype(value.dtype), rate, words, positions)
    return (einsum_float32('QS,SK->QK', weights, value) / total).astype(value.dtype)


def _by_head(
    compute: Callable[[_Arrays, jax.Array, _Row, _Arrays], _Arrays],
    read: _Arrays,
    words: jax.Array,
    mask: AttentionMask,
    written: _Arrays,
) -> _Arrays:
    """Overwrites each head of each row in `written` with the result of `compute`.

    Args:
      compute: (slices of `read`, words, `_Row`, slices of `written`), all for one head -> new slices of `written`.
      read, written: Arrays [B, Q, H, K] or [B, S, H, K]; a head's slice is [Q, K] or [S, K].
      words: uint32 [B, H, 2] or [B, H, Q, 3]; a head's words are [2] or [Q, 3].
    """
    B, Q, H, K = read[0].shape
    flat = lambda x: x.reshape(B, -1, H * K)  # noqa: E731
    read, written = tuple(map(flat, read)), tuple(map(flat, written))

    def update_head(b: jax.Array, row: _Row, h: jax.Array, written: _Arrays) -> _Arrays:
        def slice_head(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice(x, (b, 0, h * K), (1, x.shape[1], K))[0]

        results = compute(tuple(map(slice_head, read)), words[b, h], row, tuple(map(slice_head, written)))
        write = lambda x, new: jax.lax.dynamic_update_slice(x, new[None], (b, 0, h * K))  # noqa: E731
        return tuple(map(write, written, results))

    def update_row(b: jax.Array, written: _Arrays) -> _Arrays:
        row_mask = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, b, 1), mask)
        bias = jnp.where(row_mask.visible(Q)[0, 0], 0.0, NEGATIVE).astype(jnp.float32)
        row = (bias, None if row_mask.positions is None else row_mask.positions[0])
        return jax.lax.fori_loop(0, H, functools.partial(update_head, b, row), written)

    return tuple(x.reshape(B, -1, H, K) for x in jax.lax.fori_loop(0, B, update_row, written))
