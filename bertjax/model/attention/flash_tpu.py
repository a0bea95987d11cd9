"""Attention on TPU by JAX's flash attention kernel, for sequences that are too long for `fused_tpu`.

For the backward pass, the kernel saves two numbers per query instead of the scores [S, S]. It does not support dropout,
so training uses it only with `model.attention_dropout=0`; evaluation and prediction can always use it. It has not been
measured on hardware yet.
"""

import functools

import jax

from bertjax.model.attention.fused_tpu import UNSUPPORTED_KINDS
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import device_kind, indivisible_reason, over_mesh, platform

PLATFORM = 'tpu'
BLOCKS = (512, 256, 128)  # block sizes in tokens: the first that divides S is used; a register has 128 columns


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """The kernel supports TPU v4 and later without dropout, if all positions are queries and a block size divides S."""
    del mask
    S, heads = key.shape[1:3]
    if platform() != PLATFORM:
        return 'it is a kernel for TPUs'
    if device_kind() in UNSUPPORTED_KINDS:
        return f'it is a kernel for TPU v4 and later, not for {device_kind()}'
    if dropout_rate:
        return 'it does not support dropout'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    if S % BLOCKS[-1]:
        return f'sequences of {S} tokens, but it needs multiples of {BLOCKS[-1]}'
    return indivisible_reason(key.shape[0], heads)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout: Dropout | None,
) -> jax.Array:
    """See `select.Implementation`.

    A padding position sees only padding, whereas in other implementations it sees the tokens of its row.
    """
    del dropout_rate, dropout
    array_axes = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    kernel = functools.partial(_flash, causal=mask.causal)
    axes = (array_axes, array_axes, array_axes, ('act_batch', 'act_length'))
    return over_mesh(kernel, axes, array_axes)(query, key, value, mask.groups)


def _flash(query: jax.Array, key: jax.Array, value: jax.Array, sequences: jax.Array, *, causal: bool) -> jax.Array:
    """Attends on one device: query, key and value [B, S, H, K]; sequences [B, S], see `AttentionMask.groups`."""
    # Importing Pallas takes a while.
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, SegmentIds, flash_attention

    block = next(size for size in BLOCKS if query.shape[1] % size == 0)
    sizes = dict.fromkeys((field for field in BlockSizes.__dataclass_fields__ if field != 'block_b'), block)
    by_head = (x.swapaxes(1, 2) for x in (query, key, value))  # [B, H, S, K]
    mixed = flash_attention(
        *by_head,
        segment_ids=SegmentIds(sequences, sequences),
        causal=causal,
        sm_scale=query.shape[-1] ** -0.5,
        block_sizes=BlockSizes(block_b=1, **sizes),
    )
    return mixed.swapaxes(1, 2)
