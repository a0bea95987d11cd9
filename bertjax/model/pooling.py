"""Hidden states of several layers as one, and those of a text's tokens as one vector."""

import jax
import jax.numpy as jnp

COMBINE = ('mean', 'sum', 'concat', 'weighted')  # layers
POOL = ('mean', 'cls', 'pooler', 'none')  # tokens; what the 'pooler' makes of [CLS] is a part of the model


def combine_layers(x: jax.Array, combine: str, weights: tuple[float, ...]) -> jax.Array:
    """float32 [N, B, S, D] -> [B, S, D], or of 'concat' [B, S, N·D]; `weights` are those of 'weighted', one a layer."""
    if combine == 'concat':
        return jnp.concatenate(list(x), axis=-1)
    if combine == 'weighted':
        return jnp.einsum('N,NBSD->BSD', jnp.asarray(weights, jnp.float32), x, precision='highest')
    return x.sum(0) if combine == 'sum' else x.mean(0)


def pool_tokens(x: jax.Array, mask: jax.Array, pool: str) -> jax.Array:
    """[B, S, D] -> [B, D], of 'mean' over the tokens of `mask` [B, S], of 'cls' the first; of 'none' as it is."""
    if pool == 'mean':
        weights = mask.astype(x.dtype)
        total = jnp.einsum('BS,BSD->BD', weights, x, precision='highest')
        return total / jnp.maximum(weights.sum(-1, keepdims=True), 1.0)
    return x[:, 0] if pool == 'cls' else x
