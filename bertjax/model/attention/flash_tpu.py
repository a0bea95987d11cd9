"""Attention on TPU for sequences too long for `fused_tpu`: JAX's own flash kernel, which works through them in blocks.

In place of [S, S] scores it keeps two numbers a row. It has no dropout, so that a training takes it with
`model.attention_dropout=0` only; evaluation and prediction always may. As for `fused_tpu`, no figure of hardware has
been measured yet.
"""

import functools

import jax

from bertjax.model.attention.fused_tpu import EARLIER
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import device_kind, indivisible_reason, over_mesh, platform

PLATFORM = 'tpu'
BLOCKS = (512, 256, 128)  # tokens of a block, the first that divides a sequence; a register has 128 columns


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A TPU, no dropout, all positions as queries, lengths of whole blocks."""
    del mask
    S, heads = key.shape[1:3]
    if platform() != PLATFORM:
        return 'it is a kernel for TPUs'
    if device_kind() in EARLIER:
        return f'a {device_kind()}, it is a kernel for v4 and later'
    if dropout_rate:
        return 'it drops nothing'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    if S % BLOCKS[-1]:
        return f'sequences of {S} tokens, it takes multiples of {BLOCKS[-1]}'
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
    """See `select.Implementation`. A position of padding sees padding alone, where others let it see the tokens."""
    del dropout_rate, dropout
    heads = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    kernel = functools.partial(_flash, causal=mask.causal)
    axes = (heads, heads, heads, ('act_batch', 'act_length'))
    return over_mesh(kernel, axes, heads)(query, key, value, mask.groups)


def _flash(query: jax.Array, key: jax.Array, value: jax.Array, sequences: jax.Array, *, causal: bool) -> jax.Array:
    """On one device's own part; of arrays [B, S, H, K], and [B, S] of who sees whom."""
    # Pallas takes a while to import.
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
