"""The model of embeddings: the encoder and a pooling, which has no parameters."""

import jax
import jax.numpy as jnp

from bertjax.convert.heads import Head
from bertjax.model.dropout import Dropout
from bertjax.model.heads import BertForTask
from bertjax.model.pooling import pool_tokens


class BertForEmbedding(BertForTask):
    """Computes a vector of each text.

    Attributes:
      pool: The pooling, one of `model.pooling.SENTENCE_POOL`.
    """

    outputs: int = 0
    pool: str = 'mean'

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, dropout: Dropout | None = None
    ) -> dict[str, jax.Array]:
        """Maps int32 inputs [B, S] or [B, C, S] to `embeddings`, float32 [B, D] or [B, C, D], of any length."""
        *shape, S = input_ids.shape
        ids, segments, mask = (x.reshape(-1, S) for x in (input_ids, segment_ids, attention_mask))
        if dropout is not None and len(shape) > 1:
            dropout = dropout.repeat(shape[1])
        hidden = self._hidden(ids, segments, mask, dropout, first_only=self.pool == 'cls')
        pooled = pool_tokens(hidden.astype(jnp.float32), mask, self.pool)
        pooled = jnp.where(mask[:, :1] > 0, pooled, 0.0)  # the maximum over an absent text would be -inf
        return {'embeddings': pooled.reshape(*shape, pooled.shape[-1])}


EMBEDDING = Head(BertForEmbedding, architecture='BertModel', pipeline='sentence-similarity', id2label=False)
