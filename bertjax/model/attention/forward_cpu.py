"""Attention of a finished model on CPU: softmax and both products in one, and of long sequences head by head.

Beside `dot_product` it takes a tenth less for short sequences, and at 512 tokens, where the scores of all heads leave
the cache, a third. Chosen by name, as `inference/runner.py` does, never by 'auto': it drops nothing.
"""

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import parts_of, platform

PLATFORM = 'cpu'
_LONG = 256  # tokens; of more the scores of all heads leave the cache, and heads are computed one by one


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A CPU, no dropout."""
    del query, key, mask
    if platform() != PLATFORM:
        return 'it is for CPUs'
    return 'it drops nothing' if dropout_rate else None


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
    del dropout_rate, dropout
    bias = jnp.where(mask.visible(query.shape[1]), 0.0, NEGATIVE).astype(jnp.float32)  # [B, 1, Q or 1, S]
    arrays = query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    if key.shape[1] > _LONG and parts_of('act_batch') == parts_of('act_heads') == 1:
        mixed = jax.lax.map(lambda row: jax.lax.map(lambda head: _mix(*head, row[1][0]), row[0]), (arrays, bias))
    else:
        mixed = _mix(*arrays, bias)
    return mixed.transpose(0, 2, 1, 3)  # [B, Q, H, K]


def _mix(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array) -> jax.Array:
    """[..., Q, K], [..., K, S], [..., S, K] -> [..., Q, K]."""
    scores = jnp.matmul(query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5 + bias
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    mixed = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    return (mixed / weights.sum(-1, keepdims=True)).astype(value.dtype)
