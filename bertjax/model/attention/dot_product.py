"""Attention in plain XLA operations, on every device: the scores of all queries and keys are in memory at once."""

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.layers import NEGATIVE, dropout


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """None: it computes everything."""
    del query, key, mask, dropout_rate
    return None


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """softmax(Q Kᵀ / √K + bias) V, the softmax in float32; see `select.Implementation`."""
    bias = jnp.where(mask.visible(query.shape[1]), 0.0, NEGATIVE).astype(jnp.float32)  # [B, 1, Q or 1, S]
    scores = jnp.einsum('BQHK,BSHK->BHQS', query, key, preferred_element_type=jnp.float32)  # [B, H, Q, S]
    probabilities = jax.nn.softmax(scores * query.shape[-1] ** -0.5 + bias, axis=-1).astype(query.dtype)
    probabilities = dropout(probabilities, dropout_rate, dropout_key)
    return jnp.einsum('BHQS,BSHK->BQHK', probabilities, value)  # [B, Q, H, K]
