"""The encoder: embeddings and a stack of blocks, from token ids to hidden states."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.self_attention import SelfAttention
from bertjax.model.capture import CAPTURES, HIDDEN, capture_value, is_captured
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout, Site, drop, fold_in
from bertjax.model.layers import ACTIVATION_FUNCTIONS, SAVED_RESIDUAL, Embedding, LayerNorm, Projection, save_residual
from bertjax.model.lookup import onehot_lookup, sorted_lookup
from bertjax.model.row_packing import BatchLayout, PackedLayout
from bertjax.parallel.partition import constrain, platform

REMAT_POLICIES = {
    'elementwise': jax.checkpoint_policies.save_only_these_names(SAVED_RESIDUAL),
    'full': jax.checkpoint_policies.nothing_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def resolve_remat(config: BertConfig, platform: str) -> str:
    """Resolves `config.remat` on 'tpu', 'gpu' or 'cpu' to a name of REMAT_POLICIES or 'none'."""
    # On TPUs, saving costs more than recomputing, by the compiler's estimates (docs/performance.md).
    automatic = 'elementwise' if platform == 'tpu' else 'none'
    return automatic if config.remat == 'auto' else config.remat


def _hidden(x: jax.Array) -> jax.Array:
    return constrain(x, 'act_batch', 'act_length', 'act_embed')


def _gather_cls(x: jax.Array, layout: PackedLayout | None) -> jax.Array:
    """Selects the first position of each sequence from x [B, S, D]."""
    return x[:, :1] if layout is None else layout.gather_cls(x)


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, with LayerNorm and dropout."""

    config: BertConfig

    def setup(self):
        c = self.config
        self.token = Embedding(c, c.padded_vocab_size, c.vocab_size, 'vocab')
        self.position = Embedding(c, c.max_positions, c.max_positions, 'position')
        if c.num_segments:
            self.segment = Embedding(c, c.num_segments, c.num_segments, 'type')
        self.norm = LayerNorm(c)

    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        dropout: Dropout | None,
        layout: BatchLayout | PackedLayout | None = None,
    ) -> jax.Array:
        length = input_ids.shape[1] if layout is None else layout.longest
        if length > self.config.max_positions:
            raise UserError(
                'config.model.max_positions',
                f'{self.config.max_positions} for sequences of {length} tokens',
                f'at least {length}',
                'raise config.model.max_positions or shorten the sequences',
            )
        # An id outside the table gives NaN, which the loss shows. Clipping would silently take the last row.
        lookup = sorted_lookup if platform() == 'gpu' else functools.partial(jnp.take, axis=0, mode='fill')
        x = lookup(self.token(), input_ids)  # [B, S, D]
        positions = self.position()[:length]  # [S, D], packed [B, S, D]
        if layout is not None:
            positions = onehot_lookup(positions, jnp.broadcast_to(layout.position_ids, input_ids.shape))
        x = _hidden(x) + positions
        if self.config.num_segments == 1:
            x = x + self.segment()[0]
        elif self.config.num_segments and platform() == 'cpu':
            x = x + onehot_lookup(self.segment(), segment_ids)
        elif self.config.num_segments:
            # The gradient of this product is a product too. The gradient of a lookup would scatter B·S rows into N.
            segment = self.segment()  # [N, D]
            one_hot = jax.nn.one_hot(segment_ids, self.config.num_segments, dtype=segment.dtype)  # [B, S, N]
            x = x + jnp.einsum('BSN,ND->BSD', one_hot, segment, precision='highest')
        return _hidden(drop(self.norm(x), self.config.dropout, dropout, Site.EMBEDDINGS))

    def table(self) -> jax.Array:
        """Returns the token embedding [V, D], which the MLM head shares."""
        return self.token()


class Mlp(nn.Module):
    """Two projections with the activation between them."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        x = Projection(c, (c.mlp_dim,), ('embed',), ('mlp',), ('mlp',), name='up')(x)  # [B, S, F]
        x = ACTIVATION_FUNCTIONS[c.activation](save_residual(constrain(x, 'act_batch', 'act_length', 'act_mlp')))
        return Projection(c, (c.width,), ('mlp',), ('embed',), ('norm',), name='down')(x)  # [B, S, D]


class EncoderBlock(nn.Module):
    """Attention and MLP, each with dropout, a residual connection, and LayerNorm after it (before it if `pre_norm`).

    Attributes:
      config: The config of the model.
      keep_output: Whether to return the output twice, so that a scan stacks the second one.
      first_only: Whether to compute only the output of the first position, which still attends to all positions.
    """

    config: BertConfig
    keep_output: bool = False
    first_only: bool = False

    @nn.compact
    def __call__(
        self, x: jax.Array, number: int | jax.Array | None, mask: AttentionMask, dropout: Dropout | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Maps x [B, S, D] to [B, S, D], or to [B, 1, D] with `first_only`.

        Args:
          x: The hidden states.
          number: The index of the block, from 0, for dropout.
          mask: The keys that each query may see.
          dropout: The dropout of the model, or None.

        Returns:
          The output, and the output again or None (see `keep_output`).
        """
        c = self.config
        block_dropout = fold_in(dropout, number)
        output_dropout = block_dropout  # the dropout of the output positions
        if self.first_only and mask.layout and block_dropout is not None:
            gather = mask.layout.gather_cls
            output_dropout = block_dropout.replace(
                example_ids=gather(block_dropout.example_ids),
                positions=gather(block_dropout.positions),
            )
        attention, mlp = SelfAttention(c, name='attention'), Mlp(c, name='mlp')
        attention_norm, mlp_norm = LayerNorm(c, name='attention_norm'), LayerNorm(c, name='mlp_norm')
        x = _hidden(x)
        select = functools.partial(_gather_cls, layout=mask.layout) if self.first_only else lambda x: x
        if c.pre_norm:
            y = attention_norm(x)
            y = drop(attention(y, select(y), mask, block_dropout), c.dropout, output_dropout, Site.ATTENTION_OUTPUT)
            x = save_residual(select(x) + y)
            x = x + drop(mlp(mlp_norm(x)), c.dropout, output_dropout, Site.MLP_OUTPUT)
        else:
            queries = select(x)
            y = drop(attention(x, queries, mask, block_dropout), c.dropout, output_dropout, Site.ATTENTION_OUTPUT)
            x = attention_norm(save_residual(queries + y))
            x = mlp_norm(save_residual(x + drop(mlp(x), c.dropout, output_dropout, Site.MLP_OUTPUT)))
        x = _hidden(x)
        return x, x if self.keep_output else None


class BertEncoder(nn.Module):
    """Embeddings and `num_layers` blocks, scanned or unrolled. Both forms drop the same values."""

    config: BertConfig

    def setup(self):
        self.embeddings = Embeddings(self.config)
        if self.config.pre_norm:
            self.final_norm = LayerNorm(self.config)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        attention_mask: jax.Array,
        *,
        dropout: Dropout | None = None,
        layout: BatchLayout | PackedLayout | None = None,
        all_layers: bool = False,
        first_only: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Computes the hidden states of the last block and, with `all_layers`, of every layer.

        Args:
          input_ids, segment_ids, attention_mask: int32 [B, S]; the mask is 1 for tokens and 0 for padding.
          dropout: The dropout of a training step, or None for no dropout.
          layout: The layout of packed rows; each sequence attends only to its own tokens. With fixed slots,
            `dropout` is per position. None if each row is one sequence.
          all_layers: Whether to return also the hidden states of all layers, from the embeddings to the last block.
          first_only: Whether to compute the result of the first position only. An unrolled encoder then skips most of
            its last block (7 % of the work of 12 blocks); a scanned encoder skips nothing. Not with `all_layers`.

        Returns:
          The hidden states of the last block: [B, S, D] in the dtype of computation; with `first_only` [B, 1, D], or
          [B, Q, D] with fixed slots (see `PackedLayout.gather_cls`).
          The hidden states of all layers [L + 1, B, S, D], or None without `all_layers`.

        Raises:
          UserError: The sequences are longer than `max_positions`.
        """
        c = self.config
        keep_layers = all_layers or is_captured(self, HIDDEN)
        shorten = first_only and not is_captured(self, *CAPTURES)  # captured values cover all positions
        mask = AttentionMask.from_layout(attention_mask, layout, causal=c.causal)
        x = self.embeddings(input_ids, segment_ids, dropout, layout)  # [B, S, D]
        embedded = x
        block = EncoderBlock
        remat = resolve_remat(c, platform())
        if remat != 'none':
            # A scan itself prevents CSE between the two passes, so the barrier of `prevent_cse` would only cost time.
            block = nn.remat(EncoderBlock, policy=REMAT_POLICIES[remat], prevent_cse=not c.scan_layers)
        if c.scan_layers:
            scanned = nn.scan(
                block,
                variable_axes={'params': 0} | dict.fromkeys(CAPTURES, 0),
                split_rngs={'params': True},
                in_axes=(0, nn.broadcast, nn.broadcast),
                length=c.num_layers,
                metadata_params={nn.PARTITION_NAME: 'layers'},
            )
            indices = None if dropout is None else jnp.arange(c.num_layers)
            x, layers = scanned(c, keep_layers, name='layers')(x, indices, mask, dropout)  # layers [L, B, S, D]
            x = _gather_cls(x, layout) if shorten else x
        else:
            layers = []
            for i in range(c.num_layers):
                shortened = shorten and i == c.num_layers - 1
                x, _ = block(c, first_only=shortened, name=f'layers_{i}')(x, i, mask, dropout)
                layers.append(x)
            layers = jnp.stack(layers) if keep_layers else None  # [L, B, S, D]
        if c.pre_norm:
            x = self.final_norm(x)
            layers = layers.at[-1].set(x) if keep_layers else None
        if keep_layers:
            layers = jnp.concatenate([embedded[None], layers])  # [L + 1, B, S, D]
        if is_captured(self, HIDDEN):
            capture_value(self, HIDDEN, layers)
        return _gather_cls(x, layout) if first_only and not shorten else x, layers if all_layers else None

    def token_embedding(self) -> jax.Array:
        """Returns the token embedding [V, D], including the padding of the vocabulary, for a tied head."""
        return self.embeddings.table()
