"""Attention on TPU by blocks of queries, for rows with a window and rows too long for `fused_tpu`.

The kernel keeps a row in the vector memory (VMEM). With a window, a block of `BLOCK` queries sees the keys from half a
window before the block to half a window after it, so the cost grows with S·window instead of S². For S tokens, H heads
of width K and N keys per block of queries, the kernel needs 4·S·N·H·K operations forward and 10·S·N·H·K backward (five
products, one of which recomputes the scores). With a window of 128, N is 256; without a window, N is S.

The kernel has not been measured on hardware yet.
"""

import functools

import jax

from bertjax.model.attention.fused_tpu import LANES, UNSUPPORTED_KINDS, heads_per_program, split_reason
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import device_kind, over_mesh, platform, shard_count

PLATFORM = 'tpu'
BLOCK = 128  # queries per block: the width of a vector register
# {whether there is a window: the longest row in tokens}. With a window, the backward kernel needs 36 MiB of VMEM for
# rows of 8,192 tokens and heads of width 64 in bfloat16. Without a window, it needs 6 MiB for rows of 2,048 tokens:
# about six float32 [BLOCK, S] arrays.
MAX_LENGTH = {True: 8192, False: 2048}


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """The kernel supports TPU v4 and later, without dropout, if queries are all positions and see both directions."""
    S = key.shape[1]
    if mask.causal_queries is not None:
        return 'it does not support causal rows'
    if platform() != PLATFORM:
        return 'it is a kernel for TPUs'
    if device_kind() in UNSUPPORTED_KINDS:
        return f'it is a kernel for TPU v4 and later, not for {device_kind()}'
    if mask.causal:
        return 'it does not support attention to the left only'
    if mask.positions is not None or mask.query_ids is not None:
        return 'it does not support groups of rows'
    if dropout_rate:
        return 'it does not support dropout'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    longest = MAX_LENGTH[mask.window > 0]
    if S % BLOCK or longest < S:
        return f'sequences of {S} tokens, but it needs multiples of {BLOCK} up to {longest}'
    return split_reason(key)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout: Dropout | None,
    interpret: bool = False,
) -> jax.Array:
    """See `select.Implementation`. With `interpret`, JAX interprets the kernels on any device."""
    from bertjax.model.attention.blocks_tpu_kernel import BlockOptions, attention  # importing Pallas takes a while

    del dropout_rate, dropout
    group = heads_per_program(query.shape[2] // shard_count('act_heads'), query.shape[3])
    S = key.shape[1]
    keys = min(S, keys_per_block(mask.window)) if mask.window else S
    options = BlockOptions(mask.window // 2 if mask.window else S, keys, group, query.shape[3], interpret)
    columns = ('act_batch', 'act_length', 'act_heads')
    kernel = over_mesh(
        functools.partial(attention, options), (columns, columns, columns, ('act_batch', 'act_length')), columns
    )
    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))  # [B, S, H·K]
    return kernel(*flat, mask.groups).reshape(query.shape)


def keys_per_block(window: int) -> int:
    """Returns the number of keys that a block of queries may see, rounded up to a multiple of LANES."""
    return -(-(BLOCK + window // 2 * 2) // LANES) * LANES
