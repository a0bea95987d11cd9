"""The multi-head self-attention layer."""

import jax
from flax import linen as nn

from bertjax.model.attention import dot_product
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import attend
from bertjax.model.capture import PROBABILITIES, SCORES, capture_value, is_captured
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.layers import Projection, save_residual
from bertjax.parallel.partition import constrain


class SelfAttention(nn.Module):
    """Attention of H heads with query, key, value and output projections (arXiv 1706.03762, section 3.2)."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array, queries: jax.Array, mask: AttentionMask, dropout: Dropout | None) -> jax.Array:
        """Attends from the queries to x.

        Args:
          x: [B, S, D].
          queries: [B, Q, D], the first Q positions of x.
          mask: The keys that each query may see.
          dropout: The dropout of the layer, or None.

        Returns:
          [B, Q, D].
        """
        c = self.config
        heads = (c.num_heads, c.head_dim)
        names = ('heads', 'head_dim')

        def project(name: str, x: jax.Array) -> jax.Array:
            projection = Projection(c, heads, ('embed',), names, names, into_kernel=True, name=name)
            y = save_residual(projection(x))  # [B, S, H·K]
            return constrain(y, 'act_batch', 'act_length', 'act_heads').reshape(*y.shape[:2], *heads)

        query, key, value = project('query', queries), project('key', x), project('value', x)
        # Fused kernels never store these values, so they are computed in addition to `attend`. XLA merges the
        # computation with that of `dot_product`.
        if is_captured(self, SCORES):
            capture_value(self, SCORES, dot_product.scores(query, key))  # [B, H, Q, S]
        if is_captured(self, PROBABILITIES):
            capture_value(self, PROBABILITIES, dot_product.probabilities(query, key, mask))  # [B, H, Q, S]
        attended = attend(
            c.attention, query, key, value, mask, dropout_rate=c.attention_dropout, dropout=dropout
        )  # [B, Q, H, K]
        flat = constrain(attended.reshape(*attended.shape[:2], -1), 'act_batch', 'act_length', 'act_heads')
        output = Projection(c, (c.width,), names, ('embed',), ('norm',), from_kernel=True, name='output')
        return output(flat.reshape(attended.shape))  # [B, Q, D]
