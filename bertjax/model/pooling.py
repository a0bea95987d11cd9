"""Hidden states of several layers as one, and those of a text's tokens as one vector."""

import jax
import jax.numpy as jnp

COMBINE = ('mean', 'sum', 'concat', 'weighted')  # layers
# Tokens, by the names of sentence-transformers.
SENTENCE_POOL = ('mean', 'cls', 'max', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken')
POOL = (*SENTENCE_POOL, 'pooler', 'none')  # what the 'pooler' makes of [CLS] is a part of the model


def combine_layers(x: jax.Array, combine: str, weights: tuple[float, ...]) -> jax.Array:
    """float32 [N, B, S, D] -> [B, S, D], or of 'concat' [B, S, N·D]; `weights` are those of 'weighted', one a layer."""
    if combine == 'concat':
        return jnp.concatenate(list(x), axis=-1)
    if combine == 'weighted':
        return jnp.einsum('N,NBSD->BSD', jnp.asarray(weights, jnp.float32), x, precision='highest')
    return x.sum(0) if combine == 'sum' else x.mean(0)


def pool_tokens(x: jax.Array, mask: jax.Array, pool: str) -> jax.Array:
    """[B, S, D] -> [B, D] over the tokens of `mask` [B, S], or with 'none' as it is.

    As sentence-transformers' Pooling: 'mean'; 'mean_sqrt_len_tokens', the sum over the square root of their number;
    'weightedmean', where the i-th token weighs i; 'max'; the first, 'cls', or the 'lasttoken'.
    """
    if pool in ('mean', 'mean_sqrt_len_tokens', 'weightedmean'):
        weights = mask.astype(x.dtype)
        if pool == 'weightedmean':
            weights *= jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)
        total = jnp.einsum('BS,BSD->BD', weights, x, precision='highest')
        count = jnp.maximum(weights.sum(-1, keepdims=True), 1.0)
        return total / (jnp.sqrt(count) if pool == 'mean_sqrt_len_tokens' else count)
    if pool == 'max':
        return jnp.where(mask[..., None] > 0, x, -jnp.inf).max(1)
    if pool == 'lasttoken':
        return jnp.take_along_axis(x, jnp.maximum(mask.sum(-1) - 1, 0)[:, None, None], axis=1)[:, 0]
    return x[:, 0] if pool == 'cls' else x
