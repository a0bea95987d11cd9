"""Attention on TPU by JAX's flash attention kernel, for rows that the other kernels do not support.

For the backward pass, the kernel saves two numbers per query instead of the scores [S, S]. It does not support dropout,
so training uses it only with `model.attention_dropout=0`. The speed of the kernel has not been measured yet.
"""

import jax

from bertjax.model.attention.fused_tpu import TpuImplementation
from bertjax.model.attention.implementation import Kernel, refuse_length
from bertjax.model.attention.mask import AttentionMask
from bertjax.parallel.partition import indivisible_reason

BLOCKS = (512, 256, 128)  # in tokens; the first that divides S is used


class FlashTpu(TpuImplementation):
    """The kernel has no dropout. It supports row lengths that are multiples of 128, if all positions are queries.

    Padding queries see only padding. In other implementations, they see the tokens of their row.
    """

    SUPPORTS_DROPOUT = False
    MERGES_HEADS = False

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        B, S, heads, _ = key.shape
        return refuse_length(S, BLOCKS[-1]) or indivisible_reason(B, heads)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        return _flash


def _flash(query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array) -> jax.Array:
    """Attends on one device: query, key and value [B, S, H, K]."""
    # Importing Pallas takes a while.
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, SegmentIds, flash_attention

    block = next(size for size in BLOCKS if query.shape[1] % size == 0)
    sizes = dict.fromkeys((field for field in BlockSizes.__dataclass_fields__ if field != 'block_b'), block)
    by_head = (x.swapaxes(1, 2) for x in (query, key, value))  # [B, H, S, K]
    mixed = flash_attention(
        *by_head,
        segment_ids=SegmentIds(mask.groups, mask.groups),
        causal=mask.causal,
        sm_scale=query.shape[-1] ** -0.5,
        block_sizes=BlockSizes(block_b=1, **sizes),
    )
    return mixed.swapaxes(1, 2)
