"""The model of late interaction: the encoder and a bias-free projection of each token."""

import jax
import jax.numpy as jnp

from bertjax.convert.heads import Head
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.heads import BertForTask, flatten_choices
from bertjax.model.layers import Projection
from bertjax.tasks.embedding.losses import normalize

# The roles of tokens. Skipped punctuation is not compared. Augmenting [MASK] tokens are compared like ordinary ones.
ORDINARY, SKIPPED, AUGMENTING = range(3)


class BertForLateInteraction(BertForTask):
    """Computes a vector for each token (arXiv 2004.12832, section 3.2).

    Attributes:
      outputs: The width of the vectors.
      attend: Whether tokens attend to augmenting [MASK] tokens.
    """

    outputs: int = 128
    attend: bool = False

    smallest_inputs = ((1, 1),) * 4

    def setup(self):
        self.encoder = BertEncoder(self.config, self.packing)
        self.head = Projection(self.config, (self.outputs,), ('embed',), ('classes',), ('classes',), use_bias=False)

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 inputs [B, S] or [B, C, S] to `token_vectors`, float32 [B, S, D] or [B, C, S, D].

        The inputs are input_ids, segment_ids, attention_mask and token_roles. D is `outputs`. The vectors of padding
        and of skipped tokens are zero. All other vectors have length 1.
        """
        _, (ids, segments, mask, roles), dropout = flatten_choices(inputs, dropout)
        key_mask = None if self.attend else jnp.where(roles == AUGMENTING, 0, mask)
        hidden = self._hidden(ids, segments, mask, dropout, key_mask=key_mask)
        compared = (mask > 0) & (roles != SKIPPED)  # [B, S] or [B·C, S]
        vectors = jnp.where(compared[..., None], self.head(hidden).astype(jnp.float32), 0.0)
        return {'token_vectors': normalize(vectors).reshape(*inputs[0].shape, -1)}


LATE_INTERACTION = Head(
    BertForLateInteraction,
    per_token=('token_vectors',),
    architecture='BertModel',
    pipeline='sentence-similarity',
    projection='1_Dense/linear',
    id2label=False,
    sentence_class='MultiVectorEncoder',
)
