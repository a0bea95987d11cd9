"""BERT for tasks: each head is a small module on the encoder, under the same names as in pre-training.

`encoder` and `pooler` of a pre-trained tree fit as they are; `head` (and `bilstm`) start fresh.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.bert import build_pooler, gather_positions
from bertjax.model.bilstm import BiLstm
from bertjax.model.config import BertConfig
from bertjax.model.encoder import BertEncoder
from bertjax.model.layers import Projection, dropout


class _TaskModel(nn.Module):
    """What the heads share.

    Attributes:
      config: of the encoder.
      outputs: size of the head's last dimension.
      bilstm_units: units of each direction of a two-layer BiLSTM between encoder and head; 0 for none. The paper adds
        one to its left-to-right ablation (Table 5), and to frozen features for NER (section 5.3).
    """

    config: BertConfig
    outputs: int
    bilstm_units: int = 0

    def setup(self):
        self.encoder = BertEncoder(self.config)
        if self.bilstm_units:
            self.bilstm = BiLstm(self.config, self.bilstm_units)
        self.head = Projection(self.config, (self.outputs,), ('embed',), ('classes',), ('classes',))

    def _hidden(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, deterministic: bool
    ) -> jax.Array:
        """[B, S, D], or [B, S, 2U] through a BiLSTM."""
        x, _ = self.encoder(input_ids, segment_ids, attention_mask, deterministic=deterministic)
        if self.bilstm_units:
            x = self.bilstm(x, attention_mask, self._key(deterministic))
        return x

    def _key(self, deterministic: bool) -> jax.Array | None:
        return None if deterministic or not self.config.dropout else self.make_rng('dropout')

    def _project(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[..., D] -> float32 [..., outputs], with dropout before."""
        return self.head(dropout(x, self.config.dropout, self._key(deterministic))).astype(jnp.float32)


class BertForClassification(_TaskModel):
    """Classes of a sentence or a pair; `outputs=1` for regression."""

    def setup(self):
        super().setup()
        self.pooler = build_pooler(self.config)

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """int32 [B, S] each -> float32 logits or scores [B, outputs].

        Pools [CLS]. A left-to-right encoder without BiLSTM pools the last token: there [CLS] sees only itself.
        """
        hidden = self._hidden(input_ids, segment_ids, attention_mask, deterministic)
        state = hidden[:, 0]  # [B, D]
        if self.config.causal and not self.bilstm_units:
            last = jnp.maximum(attention_mask.sum(-1, keepdims=True) - 1, 0)  # [B, 1]
            state = gather_positions(hidden, last)[:, 0]  # [B, D]
        return self._project(self.pooler(state), deterministic)  # [B, outputs]


class BertForTokens(_TaskModel):
    """Classes of every token (named entities)."""

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """int32 [B, S] each -> float32 logits [B, S, outputs]."""
        return self._project(self._hidden(input_ids, segment_ids, attention_mask, deterministic), deterministic)


class BertForSpans(_TaskModel):
    """First and last token of an answer (SQuAD)."""

    outputs: int = 2

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        """int32 [B, S] each -> float32 logits of the start and of the end, [B, S] each, padding included.

        No dropout before the projection, as in google-research/bert (run_squad.py).
        """
        logits = self.head(self._hidden(input_ids, segment_ids, attention_mask, deterministic))  # [B, S, 2]
        start, end = jnp.moveaxis(logits.astype(jnp.float32), -1, 0)  # [B, S] each
        return start, end


class BertForMultipleChoice(BertForClassification):
    """One of C endings (SWAG): a score for each sequence, compared over the choices."""

    outputs: int = 1

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """int32 [B, C, S] each -> float32 logits [B, C]."""
        B, C, S = input_ids.shape
        flat = (x.reshape(B * C, S) for x in (input_ids, segment_ids, attention_mask))  # [B·C, S]
        return super().__call__(*flat, deterministic=deterministic).reshape(B, C)  # [B, C]
