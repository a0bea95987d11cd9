"""BERT for pre-training: encoder, pooler, masked language model head, sentence pair head."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.layers import (
    ACTIVATION_FUNCTIONS,
    NEGATIVE,
    Embedding,
    Norm,
    Projection,
    dot,
    dot_over_rows,
    sum_over_rows,
)
from bertjax.model.lookup import gather_positions
from bertjax.model.row_packing import BatchLayout, PackedLayout
from bertjax.parallel.partition import constrain, platform, with_axes


class Pooler(Projection):
    """A projection of hidden states, followed by an activation."""

    @nn.compact
    def __call__(self, state: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return {'tanh': jnp.tanh, 'relu': jax.nn.relu}[self.config.pooler](super().__call__(state))


class Transform(nn.Module):
    """Projection, activation and norm of hidden states, used before the last projection of a head."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        c = self.config
        x = Projection(c, (c.width,), ('embed',), ('norm',), ('norm',), name='dense')(hidden)
        return Norm(c, name='norm')(ACTIVATION_FUNCTIONS[c.mlp](x))


def build_pooler(config: BertConfig, name: str | None = None) -> nn.Module:
    """Builds the pooler for this config."""
    if config.pooler == 'transform':
        return Transform(config, name=name)
    return Pooler(config, (config.width,), ('embed',), ('norm',), ('norm',), use_bias=True, name=name)


class MlmHead(Transform):
    """The MLM head: a transform, a product with the token embedding or a separate table, and a bias per piece."""

    @nn.compact
    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        """hidden [B, P, D], token embedding [V, D] -> float32 logits [B, P, V].

        V includes the padding of the vocabulary. The padding has logits of -1e9, so it gets no gradient.
        """
        c = self.config
        x = super().__call__(hidden)  # [B, P, D]
        if not c.tie_embeddings:
            table = Embedding(c, c.padded_vocab_size, c.vocab_size, 'vocab', name='decoder')()
        bias_init = with_axes(nn.initializers.zeros_init(), 'vocab')
        bias = self.param('bias', bias_init, (c.padded_vocab_size,), jnp.dtype(c.param_dtype))
        if platform() == 'cpu':
            logits = logits_on_cpu(x, table, bias)  # [B, P, V]
        else:
            logits = jnp.einsum('BPD,VD->BPV', x, table, preferred_element_type=jnp.float32)  # [B, P, V]
            logits = logits + bias.astype(jnp.float32)
        logits = constrain(logits, 'act_batch', 'act_pred', 'act_vocab')
        return jnp.where(jnp.arange(c.padded_vocab_size) < c.vocab_size, logits, NEGATIVE)


@jax.custom_vjp
def logits_on_cpu(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Multiplies x [B, P, D] with each row of table [V, D] and adds bias [V] -> float32 [B, P, V].

    The backward pass rounds the cotangent [B, P, V] to the dtype of x once for the three gradients. Without the
    optimization barrier, XLA:CPU would round the cotangent for each gradient.
    """
    return jnp.einsum('BPD,VD->BPV', x, table, preferred_element_type=jnp.float32) + bias.astype(jnp.float32)


def _logits_gradient(residuals: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[jax.Array, ...]:
    x, table, bias = residuals
    cotangent = jax.lax.optimization_barrier(cotangent.astype(x.dtype))
    d_bias = sum_over_rows(cotangent).astype(bias.dtype)
    return dot(cotangent, table, (2,), (0,)), dot_over_rows(cotangent, x), d_bias


logits_on_cpu.defvjp(lambda *inputs: (logits_on_cpu(*inputs), inputs), _logits_gradient)


class BertForPreTraining(nn.Module):
    """An encoder with an MLM head and, if `config.nsp`, a pooler and a pair head. See BertEncoder for `packing`."""

    config: BertConfig
    packing: PackedLayout | int | None = None

    smallest_inputs = ((1, 1),) * 4  # the smallest input shapes, for init

    def setup(self):
        c = self.config
        self.encoder = BertEncoder(c, self.packing)
        self.mlm = MlmHead(c)
        if c.nsp:
            self.pooler = build_pooler(c)
            # Class 0: the second segment follows the first; class 1: it does not.
            float32_config = dataclasses.replace(c, dtype='float32')  # for the reason in heads.py
            self.nsp = Projection(float32_config, (2,), ('embed',), ('classes',), ('classes',), use_bias=True)

    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        attention_mask: jax.Array,
        masked_positions: jax.Array,
        sequence_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        *,
        causal: jax.Array | None = None,
        dropout: Dropout | None = None,
    ) -> dict[str, jax.Array]:
        """Computes the logits of the heads.

        Args:
          input_ids, segment_ids, attention_mask, causal, dropout: See `BertEncoder`.
          masked_positions: int32 [B, P], the positions of the tokens that the MLM head predicts. Unused entries may be
            any position.
          sequence_ids, position_ids: int32 [B, S], for packed rows; see `BatchLayout`.
          cls_positions: int32 [B, E], for packed rows: the first position of each of the E sequences. Unused entries
            may be any position.

        Returns:
          mlm_logits: float32 [B, P, padded vocabulary], -1e9 for the padding.
          nsp_logits: float32 [B, 2], or [B, E, 2] for packed rows; absent unless `config.nsp`.
        """
        layout = None if sequence_ids is None else BatchLayout(sequence_ids, position_ids, cls_positions)
        hidden, _ = self.encoder(
            input_ids, segment_ids, attention_mask, dropout=dropout, layout=layout, causal=causal
        )  # [B, S, D]
        outputs = {'mlm_logits': self.predict_tokens(hidden, masked_positions, causal)}
        if self.config.nsp:
            outputs['nsp_logits'] = self.nsp(self.pool(hidden, layout))  # [B, 2] or [B, E, 2]
        return outputs

    def pool(self, hidden: jax.Array, layout: BatchLayout | None = None) -> jax.Array:
        """Pools the first position of each sequence: `hidden` [B, S, D] -> [B, D], or [B, E, D] for packed rows."""
        return self.pooler(hidden[:, 0] if layout is None else layout.gather_cls(hidden))

    def predict_tokens(self, hidden: jax.Array, positions: jax.Array, causal: jax.Array | None = None) -> jax.Array:
        """Computes the logits [B, P, V] of the tokens at `positions`, int32 [B, P], from `hidden` [B, S, D]."""
        if self.config.shifted_predictions:
            positions = jnp.maximum(positions - 1, 0)  # only unused entries can be 0
        elif causal is not None:
            # A token of a causal row is not masked, so its own state would reveal it.
            is_causal = jnp.take_along_axis(causal, positions, axis=1)
            positions = jnp.maximum(positions - is_causal, 0)  # only unused entries can be 0
        return self.mlm(gather_positions(hidden, positions), self.encoder.token_embedding())

    def encode(
        self, input_ids: jax.Array, segment_ids: jax.Array, attention_mask: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Computes the hidden states of the last layer [B, S, D] and of all layers [L + 1, B, S, D], without dropout.

        The third result is the array of pooled states [B, D], or None without the pair head.
        """
        hidden, layers = self.encoder(input_ids, segment_ids, attention_mask, all_layers=True)
        return hidden, layers, self.pool(hidden) if self.config.nsp else None
