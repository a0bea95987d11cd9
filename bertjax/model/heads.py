"""BERT models for tasks: the encoder with a small head.

The parameters `encoder` and `pooler` have the same tree as in pre-training. `head`, `mix` and `bilstm` are additional.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.model.bert import build_pooler
from bertjax.model.bilstm import BiLstm
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout, Site, drop
from bertjax.model.encoder import BertEncoder
from bertjax.model.layers import Projection
from bertjax.model.pooling import pool_tokens
from bertjax.model.row_packing import PackedLayout
from bertjax.parallel.partition import with_axes

# {value of `layers`: minimum number of blocks}, named like the feature-based rows in Table 7 of the BERT paper.
LAYERS = {'embeddings': 0, 'last': 1, 'second_to_last': 2, 'sum_last_four': 4, 'concat_last_four': 4, 'sum_all': 1}
LAYERS |= {'mean_last_four': 4}  # not in the BERT paper


class LayerMix(nn.Module):
    """A learned weighted sum of layers: scale · Σ softmax(weights)_l · h_l (ELMo, arXiv 1802.05365, equation 1).

    Initially, this is the mean. Weight decay pulls the softmax towards equal weights, as ELMo's penalty does. `scale`
    has no weight decay, because of its name (optim/masks.py).
    """

    config: BertConfig

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Maps the states of N layers [N, B, S, D] to [B, S, D]."""
        param_dtype = jnp.dtype(self.config.param_dtype)
        zeros_init = with_axes(nn.initializers.zeros_init(), 'layers')
        weights = self.param('weights', zeros_init, (states.shape[0],), param_dtype)
        scale = self.param('scale', with_axes(nn.initializers.ones_init(), None), (1,), param_dtype)
        shares = scale.astype(jnp.float32) * jax.nn.softmax(weights.astype(jnp.float32))  # [N]
        return jnp.einsum('N,NBSD->BSD', shares.astype(states.dtype), states, precision='highest')


class BertForTask(nn.Module):
    """The base class of all task models: encoder, optional BiLSTM and output projection.

    Attributes:
      outputs: Size of the last dimension of the head's output.
      bilstm_units: Units in each direction of a two-layer BiLSTM between encoder and head; 0 for no BiLSTM. The BERT
        paper adds a BiLSTM to the left-to-right ablation (Table 5) and to frozen features (section 5.3).
      layers: The input of the head, one of LAYERS. 'sum_last_four' and 'sum_all' are learned sums (`LayerMix`).
      frozen: Whether to run the encoder without dropout and without gradients.
      packing: See `BertEncoder`.

    Raises:
      UserError: The encoder has too few layers for `layers`.
    """

    config: BertConfig
    outputs: int
    bilstm_units: int = 0
    layers: str = 'last'
    frozen: bool = False
    packing: PackedLayout | int | None = None

    smallest_inputs = ((1, 1),) * 3  # the smallest input shapes, for init

    def __post_init__(self):
        if LAYERS[self.layers] > self.config.num_layers:
            found = f'{self.layers!r} with an encoder of {self.config.num_layers} layers'
            fix = 'change it, for example --config.task.layers=last'
            raise UserError('config.task.layers', found, f'at least {LAYERS[self.layers]} layers', fix)
        super().__post_init__()

    def setup(self):
        self.encoder = BertEncoder(self.config, self.packing)
        if self.layers.startswith('sum_'):
            self.mix = LayerMix(self.config)
        if self.bilstm_units:
            self.bilstm = BiLstm(self.config, self.bilstm_units)
        if self.config.pooler == 'transform':
            self.pooler = build_pooler(self.config)
        # In bfloat16, close logits would be equal.
        float32_config = dataclasses.replace(self.config, dtype='float32')
        self.head = Projection(float32_config, (self.outputs,), ('embed',), ('classes',), ('classes',), use_bias=True)

    def _hidden(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        attention_mask: jax.Array,
        dropout: Dropout | None,
        first_only: bool = False,
        key_mask: jax.Array | None = None,
    ) -> jax.Array:
        """Computes the input of the head: [B, S, D], [B, S, 4D] with 'concat_last_four', or [B, S, 2U] with a BiLSTM.

        With `first_only`, the result may be only the [CLS] state, [B, 1, D].
        """
        only_last = self.layers == 'last'
        last, states = self.encoder(
            input_ids,
            segment_ids,
            attention_mask,
            dropout=None if self.frozen else dropout,
            key_mask=key_mask,
            all_layers=not only_last,
            # The causal mask of a packed row needs all positions as queries.
            first_only=first_only and only_last and not self.bilstm_units and not self.config.causal,
        )
        if self.frozen:
            last, states = jax.lax.stop_gradient((last, states))
        x = last if states is None else self._choose(states)
        if self.bilstm_units:
            x = self.bilstm(x, attention_mask, dropout)
        return x

    def _choose(self, states: jax.Array) -> jax.Array:
        """Combines the states of all layers [L + 1, B, S, D], the embeddings first, into [B, S, D] or [B, S, 4D]."""
        if self.layers == 'embeddings':
            return states[0]
        if self.layers == 'second_to_last':
            return states[-2]
        if self.layers == 'concat_last_four':
            return jnp.concatenate(list(states[-4:]), axis=-1)  # [B, S, 4D]
        if self.layers == 'mean_last_four':
            return states[-4:].mean(0)
        return self.mix(states[-4:] if self.layers == 'sum_last_four' else states[1:])

    def _project(self, x: jax.Array, dropout: Dropout | None) -> jax.Array:
        """Applies dropout, then the output projection: [..., D] -> float32 [..., outputs]."""
        return self.head(drop(x, self.config.dropout_elsewhere, dropout, Site.HEAD))

    def _transform(self, x: jax.Array) -> jax.Array:
        """Applies a 'transform' pooler to the states of all tokens [B, S, D]. Without one, returns the states."""
        return self.pooler(x) if self.config.pooler == 'transform' else x


class BertForClassification(BertForTask):
    """A classifier of sentences or sentence pairs. With `outputs=1`, it is a regression model."""

    def setup(self):
        super().setup()
        if self.config.pooler != 'transform':
            self.pooler = build_pooler(self.config)

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask [B, S] to `logits`, float32 [B, outputs].

        `config.pooling` selects the pooled state. With a left-to-right encoder and no BiLSTM, the model pools the last
        token instead of [CLS], because [CLS] then sees only itself.
        """
        pool = self.config.pooling
        if pool == 'cls' and self.config.causal and not self.bilstm_units:
            pool = 'lasttoken'
        hidden = self._hidden(*inputs, dropout, first_only=pool == 'cls')
        state = pool_tokens(hidden, inputs[2], pool)  # [B, D]
        return {'logits': self._project(self.pooler(state), dropout)}


class BertForTokens(BertForTask):
    """A classifier of every token, for example for named entities."""

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask [B, S] to `token_logits`, float32 [B, S, outputs]."""
        hidden = self._hidden(*inputs, dropout)
        return {'token_logits': self._project(self._transform(hidden), dropout)}


class BertForSpans(BertForTask):
    """A model that predicts the first and the last token of an answer (SQuAD)."""

    outputs: int = 2

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask [B, S] to float32 `start_logits`, `end_logits` [B, S].

        There is no dropout before the projection, as in google-research/bert (run_squad.py).
        """
        hidden = self._hidden(*inputs, dropout)
        logits = self.head(self._transform(hidden))  # [B, S, 2]
        start, end = jnp.moveaxis(logits, -1, 0)  # [B, S] each
        return {'start_logits': start, 'end_logits': end}


def flatten_choices(
    inputs: Sequence[jax.Array], dropout: Dropout | None
) -> tuple[list[int], list[jax.Array], Dropout | None]:
    """Reshapes inputs [B, C, S] or [B, S] to rows of S. Returns the dimensions before S, the rows and their dropout."""
    *shape, S = inputs[0].shape
    if dropout is not None and len(shape) > 1:
        dropout = dropout.repeat(shape[1])
    return shape, [x.reshape(-1, S) for x in inputs], dropout


class BertForMultipleChoice(BertForClassification):
    """A model that chooses one of C endings (SWAG) by the score of each sequence."""

    outputs: int = 1

    smallest_inputs = ((1, 1, 1),) * 3

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask to `logits`: [B, C, S] to [B, C], or [B, S] to [B]."""
        shape, flat, dropout = flatten_choices(inputs, dropout)
        return {'logits': super().__call__(*flat, dropout=dropout)['logits'].reshape(shape)}
