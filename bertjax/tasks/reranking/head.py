"""The model of a reranker: the classifier of sentence pairs with one output, for one text or for a list of texts."""

import jax

from bertjax.convert.heads import Head
from bertjax.model.dropout import Dropout
from bertjax.model.heads import BertForClassification


class BertForReranking(BertForClassification):
    """Scores pairs of a query and a text."""

    outputs: int = 1

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, dropout: Dropout | None = None
    ) -> dict[str, jax.Array]:
        """Maps int32 inputs [B, S], or [B, C, S] for lists of C texts, to `logits`, float32 [B] or [B, C]."""
        *shape, S = input_ids.shape
        flat = (x.reshape(-1, S) for x in (input_ids, segment_ids, attention_mask))
        if dropout is not None and len(shape) > 1:
            dropout = dropout.repeat(shape[1])
        return {'logits': self._logits(*flat, dropout).reshape(shape)}


RERANKING = Head(
    BertForReranking,
    architecture='BertForSequenceClassification',
    pipeline='text-ranking',
    projection='classifier',
    pools_cls=True,
)
