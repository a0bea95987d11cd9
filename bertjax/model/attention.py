"""Multi-head self-attention."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.config import BertConfig
from bertjax.model.layers import Projection, dropout
from bertjax.parallel.partition import constrain

# Large enough that the softmax of anything else wins, small enough that a row without any key stays finite.
NEGATIVE = -1e9


def attention_bias(attention_mask: jax.Array, causal: bool) -> jax.Array:
    """What is added to attention scores: 0 where a key may be seen, a large negative number where not.

    Padding keys are hidden from every query; padding queries see what others see (nobody reads their result).

    Args:
      attention_mask: int32 [B, S], 1 for tokens and 0 for padding.
      causal: hide also the keys to the right of a query.

    Returns:
      float32 [B, 1, 1, S], with `causal` [B, 1, S, S].
    """
    seen = attention_mask[:, None, None, :] > 0  # [B, 1, 1, S]
    if causal:
        length = attention_mask.shape[1]
        seen = seen & jnp.tril(jnp.ones((length, length), bool))  # [B, 1, S, S]
    return jnp.where(seen, 0.0, NEGATIVE).astype(jnp.float32)


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ / √K + bias) V, projected back to the width (arXiv 1706.03762, section 3.2)."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array, asking: jax.Array, bias: jax.Array, key: jax.Array | None) -> jax.Array:
        """What the positions that ask hear from all of x.

        Args:
          x: [B, S, D].
          asking: [B, Q, D], x itself or some of its positions.
          bias: as `attention_bias` gives, for these Q.
          key: for dropout, or None.

        Returns:
          [B, Q, D].
        """
        c = self.config
        heads = (c.num_heads, c.head_dim)
        names = ('heads', 'head_dim')

        def project(name: str, x: jax.Array) -> jax.Array:
            y = Projection(c, heads, ('embed',), names, names, name=name)(x)  # [B, S, H, K]
            return constrain(y, 'act_batch', 'act_length', 'act_heads', 'act_head_dim')

        query, keys, value = project('query', asking), project('key', x), project('value', x)
        scores = jnp.einsum('BQHK,BSHK->BHQS', query, keys, preferred_element_type=jnp.float32)  # [B, H, Q, S]
        probabilities = jax.nn.softmax(scores * c.head_dim**-0.5 + bias, axis=-1).astype(query.dtype)
        probabilities = dropout(probabilities, c.attention_dropout, key)
        mixed = jnp.einsum('BHQS,BSHK->BQHK', probabilities, value)  # [B, Q, H, K]
        mixed = constrain(mixed, 'act_batch', 'act_length', 'act_heads', 'act_head_dim')
        return Projection(c, (c.width,), names, ('embed',), ('norm',), name='output')(mixed)  # [B, Q, D]
