"""Combines several layers into one, and pools token states into one vector per text."""

import jax
import jax.numpy as jnp

COMBINE = ('mean', 'sum', 'concat', 'weighted')  # ways to combine layers
# Ways to pool tokens, with the names of sentence-transformers.
SENTENCE_POOL = ('mean', 'cls', 'max', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken')
POOL = (*SENTENCE_POOL, 'pooler', 'none')  # 'pooler' is the pooler of the model, applied to [CLS]


def combine_layers(x: jax.Array, combine: str, weights: tuple[float, ...]) -> jax.Array:
    """Combines N layers, float32 [N, B, S, D], into [B, S, D], or into [B, S, N·D] with 'concat'.

    `combine` is one of COMBINE. `weights` has one weight per layer, for 'weighted' only.
    """
    if combine == 'concat':
        return jnp.concatenate(list(x), axis=-1)
    if combine == 'weighted':
        return jnp.einsum('N,NBSD->BSD', jnp.asarray(weights, jnp.float32), x, precision='highest')
    return x.sum(0) if combine == 'sum' else x.mean(0)


def pool_tokens(x: jax.Array, mask: jax.Array, pool: str) -> jax.Array:
    """Pools the states x [B, S, D] of the tokens, where `mask` [B, S] is 1, to [B, D]. With 'none', returns x.

    The modes come from sentence-transformers. 'mean_sqrt_len_tokens' divides the sum by the square root of the token
    count. In 'weightedmean', the i-th token has weight i. 'cls' is the first token.
    """
    if pool in ('mean', 'mean_sqrt_len_tokens', 'weightedmean'):
        weights = mask.astype(x.dtype)
        if pool == 'weightedmean':
            # jax2onnx cannot convert an `arange` of a symbolic length.
            weights *= jnp.cumsum(jnp.ones_like(weights, jnp.float32), axis=1).astype(x.dtype)
        total = jnp.einsum('BS,BSD->BD', weights, x, precision='highest')
        count = jnp.maximum(weights.sum(-1, keepdims=True), 1.0)
        return total / (jnp.sqrt(count) if pool == 'mean_sqrt_len_tokens' else count)
    if pool == 'max':
        return jnp.where(mask[..., None] > 0, x, -jnp.inf).max(1)
    if pool == 'lasttoken':
        return jnp.take_along_axis(x, jnp.maximum(mask.sum(-1) - 1, 0)[:, None, None], axis=1)[:, 0]
    return x[:, 0] if pool == 'cls' else x
