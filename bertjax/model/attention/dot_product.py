"""Attention in plain XLA operations, for every device. All scores [S, S] are in memory at once."""

import jax
import jax.numpy as jnp

from bertjax.model.attention import cpu_products
from bertjax.model.attention.implementation import Implementation
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, drop_attention
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import platform


class DotProduct(Implementation):
    """softmax(query keyᵀ / √K + bias) value for heads of width K, with a float32 softmax. It supports every call."""

    SUPPORTS_ANY_MASK = True

    def supports(self, query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
        """Returns None."""
        del query, key, mask, dropout_rate
        return None

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        *,
        dropout_rate: float,
        dropout: Dropout | None,
    ) -> jax.Array:
        """See `Implementation.attend`."""
        weights = probabilities(query, key, mask).astype(query.dtype)  # [B, H, Q, S]
        weights = drop_attention(weights, dropout_rate, dropout, mask.positions)
        if platform() == 'cpu':
            return cpu_products.mix(weights, value)
        return jnp.einsum('BHQS,BSHK->BQHK', weights, value)  # [B, Q, H, K]


def probabilities(query: jax.Array, key: jax.Array, mask: AttentionMask) -> jax.Array:
    """Computes the attention probabilities: the softmax over the visible keys of each query, float32 [B, H, Q, S]."""
    bias = jnp.where(mask.visible(query.shape[1]), 0.0, NEGATIVE).astype(jnp.float32)  # [B, 1, Q or 1, S]
    return jax.nn.softmax(scores(query, key) + bias, axis=-1)


def scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Computes the attention scores query keyᵀ / √K, float32 [B, H, Q, S], for heads of width K."""
    if platform() == 'cpu':
        products = cpu_products.scores(query, key)
    else:
        products = jnp.einsum('BQHK,BSHK->BHQS', query, key, preferred_element_type=jnp.float32)
    return products * query.shape[-1] ** -0.5
