"""The head that reads the states of the two opening marks (arXiv 1906.03158, "entity markers, entity start")."""

import dataclasses

import jax

from bertjax.convert.heads import Head
from bertjax.data.features import INPUTS
from bertjax.losses import CLASSIFICATION
from bertjax.model.dropout import Dropout
from bertjax.model.heads import BertForTask
from bertjax.model.lookup import gather_positions
from bertjax.tasks.relation.features import STARTS


class BertForRelation(BertForTask):
    """Classifies two entities from the concatenated last hidden states of the first tokens of their opening marks."""

    smallest_inputs = (*BertForTask.smallest_inputs, (1, 2))

    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        attention_mask: jax.Array,
        starts: jax.Array,
        *,
        dropout: Dropout | None = None,
    ) -> dict[str, jax.Array]:
        """Returns `logits`, float32 [B, outputs]; `starts` is int32 [B, 2], the other inputs are int32 [B, S]."""
        hidden = self._hidden(input_ids, segment_ids, attention_mask, dropout)
        states = gather_positions(hidden, starts)  # [B, 2, D]
        return {'logits': self._project(states.reshape(len(states), -1), dropout)}  # [B, outputs]


ENTITY_STARTS = Head(BertForRelation)
RELATIONS = dataclasses.replace(CLASSIFICATION, inputs=(*INPUTS, STARTS))
