"""Attention within a window by a TPU kernel, whose cost grows with S·window instead of S².

The kernel keeps a row in the vector memory (VMEM). A block of `BLOCK` queries sees the keys from half a window before it
to half a window after it. For S tokens, H heads of width K and blocks of N keys, it needs 4·S·N·H·K operations forward
and 10·S·N·H·K backward (five products, one of which recomputes the scores). With a window of 128, N is 256.

The kernel has not been measured on hardware yet.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.fused_tpu import LANES, UNSUPPORTED_KINDS, heads_per_program
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import device_kind, over_mesh, platform, shard_count

PLATFORM = 'tpu'
BLOCK = 128  # queries: the width of a vector register
MAX_LENGTH = 8192  # tokens: the backward kernel needs 36 MiB of VMEM for heads of 64 in bfloat16


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """Supports windows on TPUs from v4 on, no dropout, all positions as queries, lengths of a multiple of a block."""
    S, heads, width = key.shape[1:]
    if platform() != PLATFORM:
        return 'it is a kernel only for TPUs'
    if device_kind() in UNSUPPORTED_KINDS:
        return f'a {device_kind()}, but it is a kernel for v4 and later'
    if not mask.window or mask.causal:
        return 'it computes attention in a window to both sides'
    if mask.positions is not None or mask.query_ids is not None:
        return 'it does not support rows in groups'
    if dropout_rate:
        return 'it does not support dropout'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    if S % BLOCK or S > MAX_LENGTH or keys_per_block(mask.window) > S:
        shortest = keys_per_block(mask.window)
        return f'sequences of {S} tokens, but it needs multiples of {BLOCK} from {shortest} to {MAX_LENGTH}'
    rows, chips = key.shape[0], shard_count('act_batch')
    if rows % chips:
        return f'{rows} rows cannot be split evenly over {chips} devices'
    local_heads, rest = divmod(heads, shard_count('act_heads'))
    if rest or not heads_per_program(local_heads, width):
        return f'{heads} heads of width {width} do not form groups of {LANES} columns on each device'
    return None


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
    from bertjax.model.attention.window_tpu_kernel import WindowOptions, attention  # importing Pallas takes a while

    del dropout_rate, dropout
    group = heads_per_program(query.shape[2] // shard_count('act_heads'), query.shape[3])
    options = WindowOptions(mask.window // 2, keys_per_block(mask.window), group, query.shape[3], interpret)
    columns = ('act_batch', 'act_length', 'act_heads')
    kernel = over_mesh(
        functools.partial(attention, options), (columns, columns, columns, ('act_batch', 'act_length')), columns
    )
    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))  # [B, S, H·K]
    return kernel(*flat, mask.groups).reshape(query.shape)


def keys_per_block(window: int) -> int:
    """Returns the number of keys for a block of queries: a multiple of a register, at least BLOCK + `window` // 2 · 2."""
    return -(-(BLOCK + window // 2 * 2) // LANES) * LANES
