"""The multi-head self-attention layer."""

from collections.abc import Callable

import jax
from flax import linen as nn

from bertjax.model.attention import dot_product
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import attend
from bertjax.model.capture import PROBABILITIES, SCORES, VALUE, is_captured
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.layers import Norm, Projection, save_residual
from bertjax.model.rotary import Rotary
from bertjax.parallel.partition import constrain


class SelfAttention(nn.Module):
    """Attention of H heads with query, key, value and output projections (arXiv 1706.03762, section 3.2)."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        queries: jax.Array,
        layer: int | jax.Array | None,
        mask: AttentionMask,
        rotary: tuple[Rotary, Rotary] | None,
        dropout: Dropout | None,
    ) -> jax.Array:
        """Attends from `queries` [B, Q, D] to x [B, S, D] -> [B, Q, D].

        Args:
          queries: The first Q positions of x, or the first position of each sequence.
          layer: The index of the layer, from 0; may be None if all layers are alike.
          mask: The mask without a window. If this layer has a window, the layer adds it.
          rotary: The rotations of the queries and of the keys; None without RoPE.
        """
        c = self.config
        heads = (c.num_heads, c.head_dim)
        names = ('heads', 'head_dim')

        def project(name: str, x: jax.Array) -> jax.Array:
            projection = Projection(c, heads, ('embed',), names, names, feeds_custom_kernel=True, name=name)
            y = save_residual(projection(x))  # [B, S, H·K]
            return constrain(y, 'act_batch', 'act_length', 'act_heads').reshape(*y.shape[:2], *heads)

        def over_visible(compute: Callable[[AttentionMask], jax.Array]) -> jax.Array:
            """Calls `compute` with the mask of this layer. In a scan over layers, the mask is chosen at run time."""
            attends_globally = c.attends_globally(layer)
            windowed = mask.replace(window=c.attention_window)
            if isinstance(attends_globally, bool):
                return compute(mask if attends_globally else windowed)
            return jax.lax.cond(attends_globally, lambda: compute(mask), lambda: compute(windowed))

        query, key, value = project('query', queries), project('key', x), project('value', x)
        if c.qk_norm:
            query, key = Norm(c, 'head_dim', name='query_norm')(query), Norm(c, 'head_dim', name='key_norm')(key)
        if rotary is not None:
            # Remat 'elementwise' rotates again in the backward pass, because saving the results would cost more.
            query, key = rotary[0].rotate(query), rotary[1].rotate(key)
        # Fused kernels store neither scores nor probabilities, so a capture computes them here. If `attend` uses
        # `dot_product`, XLA merges the two equal computations.
        if is_captured(self, SCORES):
            self.put_variable(SCORES, VALUE, dot_product.scores(query, key))  # [B, H, Q, S]
        if is_captured(self, PROBABILITIES):
            probabilities = over_visible(lambda mask: dot_product.probabilities(query, key, mask))
            self.put_variable(PROBABILITIES, VALUE, probabilities)  # [B, H, Q, S]
        attended = over_visible(
            lambda mask: attend(c.attention, query, key, value, mask, dropout_rate=c.attention_dropout, dropout=dropout)
        )  # [B, Q, H, K]
        flat = constrain(attended.reshape(*attended.shape[:2], -1), 'act_batch', 'act_length', 'act_heads')
        output = Projection(
            c, (c.width,), names, ('embed',), ('norm',), from_custom_kernel=True, into_residual=True, name='output'
        )
        return output(flat.reshape(attended.shape))  # [B, Q, D]
