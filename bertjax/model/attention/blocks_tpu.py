"""Attention on TPU by blocks of queries, for layers with a window and for rows too long for `fused_tpu`.

The kernel keeps a row of S tokens in the vector memory (VMEM). With a window, a block of `BLOCK` queries sees only the
keys from half a window before the block to half a window after it. The kernel multiplies each block with N keys: N is S
without a window, and 256 with a window of 128. For H heads of width K, the kernel needs 4·S·N·H·K operations forward
and 10·S·N·H·K backward, where one of the five products recomputes the scores.

The kernel has not been measured on hardware yet.
"""

import functools

import jax

from bertjax.model.attention.fused_tpu import LANES, TpuImplementation, heads_per_program
from bertjax.model.attention.implementation import Kernel, refuse_length
from bertjax.model.attention.mask import AttentionMask
from bertjax.parallel.partition import shard_count

BLOCK = 128  # queries per block: the width of a vector register
# {whether there is a window: the longest row in tokens}. For the longest row, with heads of width 64 in bfloat16, the
# arrays of the row take 36 MiB of VMEM in the backward kernel with a window, and 9 MiB without. About six float32
# arrays [BLOCK, N] take up to 6 MiB more.
MAX_LENGTH = {True: 8192, False: 2048}


class BlocksTpu(TpuImplementation):
    """The kernel has no dropout. It supports bidirectional attention in which every position is a query."""

    SUPPORTS_DROPOUT = False

    def _refuse_mask(self, mask: AttentionMask) -> str | None:
        if mask.causal:
            return 'it does not support causal attention'
        return super()._refuse_mask(mask.replace(window=0))

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        if mask.window and _keys_per_block(key.shape[1], mask.window) > MAX_LENGTH[False]:
            return f'a window of {mask.window}, but it allows {MAX_LENGTH[False]} keys per block'
        return refuse_length(key.shape[1], BLOCK, MAX_LENGTH[mask.window > 0]) or super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        from bertjax.model.attention.blocks_tpu_kernel import BlockOptions, attention  # importing Pallas takes a while

        (S, heads, width), keys = query.shape[1:], _keys_per_block(query.shape[1], mask.window)
        group = heads_per_program(heads // shard_count('act_heads'), width)
        return functools.partial(attention, BlockOptions(mask.window // 2 if mask.window else S, keys, group, width))


def _keys_per_block(length: int, window: int) -> int:
    """Returns the number of keys for a block of queries, a multiple of LANES."""
    return min(length, -(-(BLOCK + 2 * (window // 2)) // LANES) * LANES) if window else length
