"""The two products of `dot_product` in forms for which XLA:CPU has fast matmuls.

Heads come before positions, so each matrix is contiguous in memory. Barriers keep XLA from folding the transposition
into the product, which would then take 1.5 times as long. Products of bfloat16 have float32 results, for the reason in
`layers.dot`.
"""

import jax
import jax.numpy as jnp


def _einsum_float32(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(form, x, y, preferred_element_type=jnp.float32)


def _swap_heads(x: jax.Array) -> jax.Array:
    """Swaps axes 1 and 2 in memory: [B, S, H, K] -> [B, H, S, K], or back."""
    return jax.lax.optimization_barrier(x.swapaxes(1, 2))


@jax.custom_vjp
def scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Multiplies query [B, Q, H, K] with key [B, S, H, K] of the same dtype -> float32 [B, H, Q, S]."""
    return _scores_forward(query, key)[0]


def _scores_forward(query: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    query, key = _swap_heads(query), _swap_heads(key)
    return _einsum_float32('BHQK,BHSK->BHQS', query, key), (query, key)


def _scores_gradient(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = residuals
    cotangent = cotangent.astype(query.dtype)
    d_query = _einsum_float32('BHQS,BHSK->BHQK', cotangent, key).astype(query.dtype)
    d_key = _einsum_float32('BHQS,BHQK->BHSK', cotangent, query).astype(key.dtype)
    return _swap_heads(d_query), _swap_heads(d_key)


scores.defvjp(_scores_forward, _scores_gradient)


@jax.custom_vjp
def mix(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Multiplies weights [B, H, Q, S] with value [B, S, H, K] -> [B, Q, H, K], all of the same dtype."""
    return _mix_forward(weights, value)[0]


def _mix_forward(weights: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    value = _swap_heads(value)
    return _swap_heads(_einsum_float32('BHQS,BHSK->BHQK', weights, value).astype(value.dtype)), (weights, value)


def _mix_gradient(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, value = residuals
    cotangent = _swap_heads(cotangent)
    d_weights = _einsum_float32('BHQK,BHSK->BHQS', cotangent, value).astype(weights.dtype)
    return d_weights, _swap_heads(_einsum_float32('BHQS,BHQK->BHSK', weights, cotangent).astype(value.dtype))


mix.defvjp(_mix_forward, _mix_gradient)
