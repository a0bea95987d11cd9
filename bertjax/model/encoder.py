"""The encoder: embeddings and a stack of blocks, from token ids to hidden states."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.self_attention import SelfAttention
from bertjax.model.capture import CAPTURES, HIDDEN, VALUE, is_captured
from bertjax.model.config import GATED_MLPS, BertConfig
from bertjax.model.dropout import Dropout, Site, drop
from bertjax.model.layers import ACTIVATION_FUNCTIONS, SAVED_RESIDUAL, Embedding, Norm, Projection, save_residual
from bertjax.model.lookup import onehot_lookup, scatter_lookup, sorted_lookup
from bertjax.model.rotary import Rotary
from bertjax.model.row_packing import BatchLayout, PackedLayout
from bertjax.parallel.partition import constrain, platform

REMAT_POLICIES = {
    'elementwise': jax.checkpoint_policies.save_only_these_names(SAVED_RESIDUAL),
    'full': jax.checkpoint_policies.nothing_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def resolve_remat(config: BertConfig, platform: str) -> str:
    """Resolves `config.remat` on 'tpu', 'gpu' or 'cpu' to a name of REMAT_POLICIES or 'none'."""
    # By the TPU compiler's estimate, saving all values costs more than recomputing some.
    automatic = 'elementwise' if platform == 'tpu' else 'none'
    return automatic if config.remat == 'auto' else config.remat


def _constrain_hidden(x: jax.Array) -> jax.Array:
    return constrain(x, 'act_batch', 'act_length', 'act_embed')


def _gather_cls(x: jax.Array, layout: PackedLayout | None) -> jax.Array:
    """Selects the first position of each sequence: [B, S, D] -> [B, 1, D], or [B, Q, D] with a layout."""
    return x[:, :1] if layout is None else layout.gather_cls(x)


def _choose(condition: bool | jax.Array, x: Any, y: Any) -> Any:
    """Returns tree x if the condition is true, else tree y. In a scan over layers, the condition is an array."""
    if isinstance(condition, bool):
        return x if condition else y
    return jax.tree.map(functools.partial(jnp.where, condition), x, y)


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, with a norm and dropout."""

    config: BertConfig

    def setup(self):
        c = self.config
        self.token = Embedding(c, c.padded_vocab_size, c.vocab_size, 'vocab')
        if c.position == 'learned':
            self.position = Embedding(c, c.max_positions, c.max_positions, 'position')
        if c.num_segments:
            self.segment = Embedding(c, c.num_segments, c.num_segments, 'type')
        self.norm = Norm(c)

    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        dropout: Dropout | None,
        layout: BatchLayout | PackedLayout | None = None,
    ) -> jax.Array:
        length = input_ids.shape[1] if layout is None else layout.longest
        if length > self.config.max_positions:
            found = f'{self.config.max_positions} for sequences of {length} tokens'
            fix = 'raise config.model.max_positions or shorten the sequences'
            raise UserError('config.model.max_positions', found, f'at least {length}', fix)
        # An id outside the table gives NaN, which is visible in the loss. Clipping would hide the error.
        lookup = sorted_lookup if platform() == 'gpu' else scatter_lookup
        x = _constrain_hidden(lookup(self.token(), input_ids))  # [B, S, D]
        if self.config.position == 'learned':
            positions = self.position()[:length]  # [S, D]; for packed rows, the lookup gives [B, S, D]
            if layout is not None:
                positions = onehot_lookup(positions, jnp.broadcast_to(layout.position_ids, input_ids.shape))
            x = x + positions
        if self.config.num_segments == 1:
            x = x + self.segment()[0]
        elif self.config.num_segments and platform() == 'cpu':
            x = x + onehot_lookup(self.segment(), segment_ids)
        elif self.config.num_segments:
            # The gradient of `jnp.take` would be a scatter of B·S rows. The gradient of this product is a product.
            segment = self.segment()  # [N, D]
            one_hot = jax.nn.one_hot(segment_ids, self.config.num_segments, dtype=segment.dtype)  # [B, S, N]
            x = x + jnp.einsum('BSN,ND->BSD', one_hot, segment, precision='highest')
        return _constrain_hidden(drop(self.norm(x), self.config.dropout_elsewhere, dropout, Site.EMBEDDINGS))


class Mlp(nn.Module):
    """Two projections with an activation between them, or a gated MLP (`config.mlp`)."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        activation = ACTIVATION_FUNCTIONS[c.mlp]

        def project(name: str) -> jax.Array:
            y = Projection(c, (c.mlp_dim,), ('embed',), ('mlp',), ('mlp',), name=name)(x)  # [B, S, F]
            return save_residual(constrain(y, 'act_batch', 'act_length', 'act_mlp'))

        up = project('up')
        y = activation(project('gate')) * up if c.mlp in GATED_MLPS else activation(up)
        down = Projection(c, (c.width,), ('mlp',), ('embed',), ('norm',), into_residual=True, name='down')
        return down(y)  # [B, S, D]


class EncoderBlock(nn.Module):
    """Attention and MLP, each with dropout, a residual connection and a norm."""

    config: BertConfig
    keep_output: bool = False  # whether to return the output twice, so that a scan stacks the second output
    # Whether to compute only the output of each sequence's first position, which still attends to the whole sequence.
    first_only: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        layer: int | jax.Array | None,
        mask: AttentionMask,
        rotations: tuple[Rotary, Rotary] | None,
        dropout: Dropout | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Maps x [B, S, D] to [B, S, D]; with `first_only` to [B, 1, D], or to [B, Q, D] with `mask.layout`.

        Args:
          layer: The index of the block, from 0; may be None if all blocks are alike and there is no dropout.
          mask: The mask without a window.
          rotations: The rotations of blocks that attend globally and of blocks with a window; None without RoPE.
        """
        c = self.config
        block_dropout = output_dropout = dropout and dropout.fold_in(layer)
        if self.first_only and mask.layout and block_dropout is not None:
            output_dropout = block_dropout.select(mask.layout.gather_cls)
        attention, mlp = SelfAttention(c, name='attention'), Mlp(c, name='mlp')
        attention_norm, mlp_norm = Norm(c, name='attention_norm'), Norm(c, name='mlp_norm')
        x = _constrain_hidden(x)
        select = functools.partial(_gather_cls, layout=mask.layout) if self.first_only else lambda x: x
        rotary = None
        if rotations is not None:
            rotary = _choose(c.attends_globally(layer), *rotations)
            rotary = jax.tree.map(select, rotary), rotary

        def attend(x: jax.Array) -> jax.Array:
            y = attention(x, select(x), layer, mask, rotary, block_dropout)
            return drop(y, c.dropout, output_dropout, Site.ATTENTION_OUTPUT)

        def transform(x: jax.Array) -> jax.Array:
            return drop(mlp(x), c.dropout_elsewhere, output_dropout, Site.MLP_OUTPUT)

        if c.pre_norm:
            y = attention_norm(x)
            # The first block has the norm's parameters even if it does not use them, because a scan stacks all blocks.
            y = y if c.first_attention_norm else _choose(layer == 0, x, y)
            x = save_residual(select(x) + attend(y))
            x = x + transform(mlp_norm(x))
        else:
            x = attention_norm(save_residual(select(x) + attend(x)))
            x = mlp_norm(save_residual(x + transform(x)))
        x = _constrain_hidden(x)
        return x, x if self.keep_output else None


class BertEncoder(nn.Module):
    """Embeddings and `num_layers` blocks, scanned or unrolled. Both forms drop the same values.

    Attributes:
      packing: How to pack several sequences of a call into a row: by a `PackedLayout` or, for calls without dropout, by
        the number of sequences per row; None for no packing. Inputs and results still have one sequence per row,
        results are zero outside the slots of a layout, and intermediate values must not be captured.
    """

    config: BertConfig
    packing: PackedLayout | int | None = None

    def setup(self):
        self.embeddings = Embeddings(self.config)
        if self.config.pre_norm:
            self.final_norm = Norm(self.config)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        segment_ids: jax.Array,
        attention_mask: jax.Array,
        *,
        dropout: Dropout | None = None,
        layout: BatchLayout | PackedLayout | None = None,
        causal: jax.Array | None = None,
        key_mask: jax.Array | None = None,
        all_layers: bool = False,
        first_only: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Computes the hidden states of the last block and, with `all_layers`, of every layer.

        Args:
          input_ids, segment_ids, attention_mask: int32 [B, S]; the mask is 1 for tokens and 0 for padding. Padding must
            follow the tokens of a row, because cuDNN reads only the number of tokens. `key_mask` hides other tokens.
          dropout: The dropout of a training step, or None for no dropout.
          layout: The layout of packed rows; None if each row is one sequence. With a `PackedLayout`, `dropout` has an
            example number for each position.
          causal: int32 [B, S], 1 for tokens that cannot attend to later tokens; None if there are no such tokens, and
            with a `PackedLayout`.
          key_mask: int32 [B, S], 1 for the tokens that others attend to; None for all tokens.
          all_layers: Whether to also return the hidden states of all layers, from the embeddings to the last block.
          first_only: Whether to return only the first position of each sequence. An unrolled encoder then skips most of
            its last block, which saves 7 % of the work of 12 blocks. `first_only` must be False with `all_layers`, and
            has no effect if `packing` is a number or values are captured.

        Returns:
          The hidden states of the last block: [B, S, D] in the dtype of computation; with `first_only` [B, 1, D], or
          [B, Q, D] if `layout` is a `PackedLayout` (see `PackedLayout.gather_cls`).
          The hidden states of all layers [L + 1, B, S, D], or None without `all_layers`.

        Raises:
          UserError: The sequences are longer than `max_positions`.
        """
        length = input_ids.shape[1]
        if self.packing is not None:
            if isinstance(self.packing, PackedLayout):
                layout, dropout = self.packing, None if dropout is None else self.packing.dropout(dropout)
            else:
                layout, first_only = BatchLayout.from_mask(attention_mask, self.packing), False
            arrays = input_ids, segment_ids, attention_mask, key_mask
            input_ids, segment_ids, attention_mask, key_mask = (None if x is None else layout.pack(x) for x in arrays)
        mask = AttentionMask(
            attention_mask if key_mask is None else key_mask,
            causal=self.config.causal,
            causal_queries=causal,
            hidden_queries=key_mask is not None,
        )
        if isinstance(layout, PackedLayout):
            mask = mask.replace(layout=layout)
        elif layout is not None:
            mask = mask.replace(sequence_ids=layout.sequence_ids)
        keep_layers = all_layers or is_captured(self, HIDDEN)
        first_only = first_only and not is_captured(self, *CAPTURES)  # captured values cover all positions
        embedded = self.embeddings(input_ids, segment_ids, dropout, layout)  # [B, S, D]
        rotations = self._rotations(input_ids.shape[1], layout)
        x, layers = self._apply_blocks(embedded, mask, rotations, dropout, layout, keep_layers, first_only)
        if self.config.pre_norm:
            x = self.final_norm(x)
            layers = layers.at[-1].set(x) if keep_layers else None
        if keep_layers:
            layers = jnp.concatenate([embedded[None], layers])  # [L + 1, B, S, D]
        if is_captured(self, HIDDEN):
            self.put_variable(HIDDEN, VALUE, layers)
        layers = layers if all_layers else None
        if self.packing is None:
            return x, layers
        if first_only:
            return layout.unpack_cls(x), layers
        unpack = functools.partial(layout.unpack, length=length)
        return unpack(x), None if layers is None else jax.vmap(unpack)(layers)

    # If Linen wrapped `_apply_blocks`, this name would appear in the operation names that cost/estimate.py reads.
    @nn.nowrap
    def _apply_blocks(
        self,
        x: jax.Array,
        mask: AttentionMask,
        rotations: tuple[Rotary, Rotary] | None,
        dropout: Dropout | None,
        layout: BatchLayout | PackedLayout | None,
        keep_layers: bool,
        first_only: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the blocks to x [B, S, D]. Returns the last output, and all outputs if `keep_layers`, else None."""
        c = self.config
        block = EncoderBlock
        remat = resolve_remat(c, platform())
        if remat != 'none':
            # A scan itself prevents CSE between forward and backward pass, so `prevent_cse` would only cost time.
            # An unrolled block needs its index at trace time, to choose its window and rotation.
            static = {'static_argnums': (2,)} if not (c.scan_layers or c.layers_alike) else {}
            block = nn.remat(EncoderBlock, policy=REMAT_POLICIES[remat], prevent_cse=not c.scan_layers, **static)
        if c.scan_layers:
            scanned = nn.scan(
                block,
                variable_axes={'params': 0} | dict.fromkeys(CAPTURES, 0),
                split_rngs={'params': True},
                in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
                length=c.num_layers,
                metadata_params={nn.PARTITION_NAME: 'layers'},
                # The check costs a second trace of the block. It stays on in init, where it affects initial values.
                check_constancy_invariants=self.is_initializing(),
            )
            indices = None if c.layers_alike and dropout is None else jnp.arange(c.num_layers)
            # layers [L, B, S, D]
            x, layers = scanned(c, keep_layers, name='layers')(x, indices, mask, rotations, dropout)
            return _gather_cls(x, layout) if first_only else x, layers
        layers = []
        for i in range(c.num_layers):
            is_last = i == c.num_layers - 1
            x, _ = block(c, first_only=first_only and is_last, name=f'layers_{i}')(x, i, mask, rotations, dropout)
            layers.append(x)
        return x, jnp.stack(layers) if keep_layers else None  # [L, B, S, D]

    def _rotations(self, length: int, layout: BatchLayout | PackedLayout | None) -> tuple[Rotary, Rotary] | None:
        """Computes the `rotations` of `EncoderBlock`."""
        c = self.config
        if c.position != 'rope':
            return None
        # An exported model has a symbolic length. ONNX has no range of symbolic length, but can slice an array.
        positions = jnp.arange(c.max_positions)[:length] if layout is None else jnp.asarray(layout.position_ids)
        positions = jnp.atleast_2d(positions)  # [1 or B, S]
        rotations = Rotary.of_positions
        if platform() == 'cpu':
            longest = length if layout is None else layout.longest
            longest = longest if isinstance(longest, int) else c.max_positions
            rotations = functools.partial(Rotary.from_table, length=longest)
        return tuple(rotations(positions, c.head_dim, theta) for theta in (c.rope_theta, c.rope_local_theta))

    def token_embedding(self) -> jax.Array:
        """Returns the token embedding [V, D] for a tied head, including the padding of the vocabulary."""
        return self.embeddings.token()
