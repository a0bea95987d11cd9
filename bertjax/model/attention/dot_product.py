"""Attention in plain XLA operations, for every call and device. All scores [S, S] are in memory at once."""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.implementation import Implementation, Kernel
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import drop_weights
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import platform

einsum_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class DotProduct(Implementation):
    """Computes softmax(query keyᵀ / √K + bias) value for heads of width K, with a float32 softmax."""

    SUPPORTS_ANY_MASK = True

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        return functools.partial(_attend, rate)


def _attend(
    rate: float, query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array | None
) -> jax.Array:
    weights = probabilities(query, key, mask).astype(query.dtype)  # [B, H, Q, S]
    weights = drop_weights(weights, rate, words, None if mask.positions is None else mask.positions[:, None])
    if platform() == 'cpu':
        return mix_on_cpu(weights, value)
    return jnp.einsum('BHQS,BSHK->BQHK', weights, value)  # [B, Q, H, K]


def probabilities(query: jax.Array, key: jax.Array, mask: AttentionMask) -> jax.Array:
    """Computes the attention probabilities: the softmax over the visible keys of each query, float32 [B, H, Q, S]."""
    bias = jnp.where(mask.visible(query.shape[1]), 0.0, NEGATIVE).astype(jnp.float32)  # [B, 1, Q or 1, S]
    return jax.nn.softmax(scores(query, key) + bias, axis=-1)


def scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Computes the attention scores query keyᵀ / √K, float32 [B, H, Q, S], for heads of width K."""
    products = scores_on_cpu(query, key) if platform() == 'cpu' else einsum_float32('BQHK,BSHK->BHQS', query, key)
    return products * query.shape[-1] ** -0.5


# The functions below compute the two products of attention in the form for which XLA:CPU has fast matmuls: heads come
# before positions, so each matrix is contiguous in memory. Without the barriers, XLA would fold the transposition into
# the product, which would then take 1.5 times as long. `layers.dot` says why products of bfloat16 are float32.
def _swap_heads(x: jax.Array) -> jax.Array:
    """Swaps axes 1 and 2 in memory: [B, S, H, K] -> [B, H, S, K], or back."""
    return jax.lax.optimization_barrier(x.swapaxes(1, 2))


@jax.custom_vjp
def scores_on_cpu(query: jax.Array, key: jax.Array) -> jax.Array:
    """Multiplies query [B, Q, H, K] with key [B, S, H, K] of the same dtype -> float32 [B, H, Q, S]."""
    return _scores_forward(query, key)[0]


def _scores_forward(query: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    query, key = _swap_heads(query), _swap_heads(key)
    return einsum_float32('BHQK,BHSK->BHQS', query, key), (query, key)


def _scores_gradient(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = residuals
    cotangent = cotangent.astype(query.dtype)
    d_query = einsum_float32('BHQS,BHSK->BHQK', cotangent, key).astype(query.dtype)
    d_key = einsum_float32('BHQS,BHQK->BHSK', cotangent, query).astype(key.dtype)
    return _swap_heads(d_query), _swap_heads(d_key)


scores_on_cpu.defvjp(_scores_forward, _scores_gradient)


@jax.custom_vjp
def mix_on_cpu(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Multiplies weights [B, H, Q, S] with value [B, S, H, K] -> [B, Q, H, K], all of the same dtype."""
    return _mix_forward(weights, value)[0]


def _mix_forward(weights: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    value = _swap_heads(value)
    return _swap_heads(einsum_float32('BHQS,BHSK->BHQK', weights, value).astype(value.dtype)), (weights, value)


def _mix_gradient(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, value = residuals
    cotangent = _swap_heads(cotangent)
    d_weights = einsum_float32('BHQK,BHSK->BHQS', cotangent, value).astype(weights.dtype)
    return d_weights, _swap_heads(einsum_float32('BHQS,BHQK->BHSK', weights, cotangent).astype(value.dtype))


mix_on_cpu.defvjp(_mix_forward, _mix_gradient)
