"""The head on the hidden states of the two opening marks (arXiv 1906.03158, "entity markers, entity start")."""

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
    """Classifies the relation of two entities.

    The input of the head is the concatenation of the last hidden states at the first tokens of both opening marks.
    """

    smallest_inputs = (*BertForTask.smallest_inputs, (1, 2))

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask [B, S], and starts [B, 2], to `logits`.

        `starts` has the positions of the first tokens of the two opening marks. The logits are float32 [B, outputs].
        """
        *tokens, starts = inputs
        hidden = self._hidden(*tokens, dropout)
        states = gather_positions(hidden, starts)  # [B, 2, D]
        return {'logits': self._project(states.reshape(len(states), -1), dropout)}  # [B, outputs]


ENTITY_STARTS = Head(BertForRelation)
RELATIONS = dataclasses.replace(CLASSIFICATION, inputs=(*INPUTS, STARTS))
