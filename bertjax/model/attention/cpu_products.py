"""The two products of `dot_product` in forms that XLA:CPU has fast kernels for.

Matrices have no gaps in memory: heads come before positions, behind barriers, without which XLA folds the transposition
into the product and takes half as long again for it. And of bfloat16 the result is float32 (see `layers.product`).
"""

import jax
import jax.numpy as jnp


def _wide(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(form, x, y, preferred_element_type=jnp.float32)


def _turned(x: jax.Array) -> jax.Array:
    """[B, S, H, K] -> [B, H, S, K], in memory too; or back."""
    return jax.lax.optimization_barrier(x.swapaxes(1, 2))


@jax.custom_vjp
def scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """query [B, Q, H, K], key [B, S, H, K] of one dtype -> their products, float32 [B, H, Q, S]."""
    return _scores_forward(query, key)[0]


def _scores_forward(query: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    query, key = _turned(query), _turned(key)
    return _wide('BHQK,BHSK->BHQS', query, key), (query, key)


def _scores_gradient(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = saved
    cotangent = cotangent.astype(query.dtype)
    d_query = _wide('BHQS,BHSK->BHQK', cotangent, key).astype(query.dtype)
    d_key = _wide('BHQS,BHQK->BHSK', cotangent, query).astype(key.dtype)
    return _turned(d_query), _turned(d_key)


scores.defvjp(_scores_forward, _scores_gradient)


@jax.custom_vjp
def mix(weights: jax.Array, value: jax.Array) -> jax.Array:
    """weights [B, H, Q, S], value [B, S, H, K] of one dtype -> the weighted sums of values, in it, [B, Q, H, K]."""
    return _mix_forward(weights, value)[0]


def _mix_forward(weights: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    value = _turned(value)
    return _turned(_wide('BHQS,BHSK->BHQK', weights, value).astype(value.dtype)), (weights, value)


def _mix_gradient(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, value = saved
    cotangent = _turned(cotangent)
    d_weights = _wide('BHQK,BHSK->BHQS', cotangent, value).astype(weights.dtype)
    return d_weights, _turned(_wide('BHQS,BHQK->BHSK', weights, cotangent).astype(value.dtype))


mix.defvjp(_mix_forward, _mix_gradient)
