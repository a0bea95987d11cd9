"""The attention implementations for TPUs: two kernels of bertjax and JAX's flash attention.

For a sequence of S tokens and H heads of width K, `fused_tpu` needs 4·S²·H·K operations forward and 10·S²·H·K backward,
where one of the five products recomputes the scores. `dot_product` needs 4·S²·H·K and 8·S²·H·K. In bfloat16, the
kernels move 8·S·H·K bytes forward (three arrays in, one out) and 14·S·H·K backward. `dot_product` also writes and reads
arrays [S, S]. At S = 512 and K = 64, writing one array [S, S], 2·S²·H bytes in bfloat16, is twice the traffic of the
forward kernel. 'auto' prefers the kernels because of this arithmetic. Their speed has not been measured yet.
"""

import functools
import math

import jax

from bertjax.model.attention.implementation import Implementation, Kernel, KernelOptions, refuse_length
from bertjax.model.attention.mask import AttentionMask
from bertjax.parallel.partition import indivisible_reason, shard_count, traced_device

UNSUPPORTED_KINDS = ('TPU v2', 'TPU v3')  # Mosaic does not compile for these
LANES = 128  # width of a vector register
MAX_FUSED_LENGTH = 512  # tokens: the backward kernel needs about nine float32 [S, S] arrays, 9 of 16 MiB of VMEM
BLOCK = 128  # queries per block of `blocks_tpu`: the width of a vector register
MAX_BLOCKS_LENGTH = {True: 8192, False: 2048}  # {whether there is a window: the longest row of `blocks_tpu` in tokens}
_MIB = 2**20
# {kind of device: the VMEM of a core in MiB}, from JAX's `TpuInfo`. Other devices have _OTHER_VMEM.
_VMEM = {'TPU v4': 16, 'TPU v4 lite': 16, 'TPU v5': 64, 'TPU v5p': 64, 'TPU7': 64, 'TPU7x': 64, 'TPU8i': 192}
_OTHER_VMEM = 128
FLASH_BLOCKS = (512, 256, 128)  # in tokens; the first that divides S is used


class TpuImplementation(Implementation):
    """The base class of the kernels for TPU v4 and later."""

    PLATFORM = 'tpu'
    MERGES_HEADS = True

    def _refuse_device(self, query: jax.Array) -> str | None:
        kind = traced_device().device_kind
        return f'it is a kernel for TPU v4 and later, not for {kind}' if kind in UNSUPPORTED_KINDS else None

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        heads, width = key.shape[2:]
        if reason := super()._refuse_shape(key, mask):
            return reason
        fits = _heads_per_program(heads // shard_count('act_heads'), width)
        return None if fits else f'{heads} heads of width {width} do not form groups of {LANES} columns on each device'


class FusedTpu(TpuImplementation):
    """A kernel for sequences whose scores [S, S] fit in the vector memory (VMEM). All positions must be queries."""

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        return refuse_length(key.shape[1], LANES, MAX_FUSED_LENGTH) or super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        from bertjax.model.attention.tpu_kernel import attention  # importing Pallas takes a while

        group = _heads_per_program(query.shape[2] // shard_count('act_heads'), query.shape[3])
        options = KernelOptions(rate, mask.sequence_ids is not None, mask.causal, group)
        return functools.partial(attention, options)


class BlocksTpu(TpuImplementation):
    """A kernel for layers with a window and for rows too long for `FusedTpu`, without dropout and causal attention.

    The kernel keeps a row of S tokens in VMEM, and multiplies each block of `BLOCK` queries with N keys instead of S:
    the keys from half a window before the block to half a window after it, such as 256 for a window of 128. This needs
    4·S·N·H·K operations forward and 10·S·N·H·K backward.
    """

    SUPPORTS_DROPOUT = False

    def _refuse_mask(self, mask: AttentionMask) -> str | None:
        if mask.causal:
            return 'it does not support causal attention'
        return super()._refuse_mask(mask.replace(window=0))

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        S, heads, width = key.shape[1:]
        longest, keys = MAX_BLOCKS_LENGTH[False], _keys_per_block(S, mask.window)
        if mask.window and keys > longest:
            return f'a window of {mask.window}, but it allows {longest} keys per block'
        longest = MAX_BLOCKS_LENGTH[mask.window > 0]
        if reason := refuse_length(S, BLOCK, longest) or super()._refuse_shape(key, mask):
            return reason
        # The backward kernel has two buffers for each of seven arrays of the row, two float32 sums of the row, and
        # about six float32 arrays [BLOCK, N]. For 8,192 tokens and heads of width 64 in bfloat16, this is 37 MiB.
        columns = width * _heads_per_program(heads // shard_count('act_heads'), width)
        vmem = S * columns * (14 * key.dtype.itemsize + 8) + 24 * BLOCK * keys
        kind = traced_device().device_kind
        limit = _VMEM.get(kind, _OTHER_VMEM)
        return None if vmem <= limit * _MIB else f'{-(-vmem // _MIB)} MiB of VMEM, but {kind} has {limit} MiB'

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        from bertjax.model.attention.blocks_tpu_kernel import BlockOptions, attention  # importing Pallas takes a while

        (S, heads, width), keys = query.shape[1:], _keys_per_block(query.shape[1], mask.window)
        group = _heads_per_program(heads // shard_count('act_heads'), width)
        return functools.partial(attention, BlockOptions(mask.window // 2 if mask.window else S, keys, group, width))


class FlashTpu(TpuImplementation):
    """JAX's flash attention, for rows that the other kernels do not support, without dropout.

    For the backward pass, the kernel saves two numbers per query instead of the scores [S, S]. Padding queries see only
    padding, whereas they see the tokens of their row in other implementations.
    """

    SUPPORTS_DROPOUT = False
    MERGES_HEADS = False

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        B, S, heads, width = key.shape
        if width > LANES and width % LANES:
            return f'heads of width {width}, but above {LANES} it needs multiples of {LANES}'
        return refuse_length(S, FLASH_BLOCKS[-1]) or indivisible_reason(B, heads)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        return _flash


def _flash(query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array) -> jax.Array:
    """Attends on one device: query, key and value [B, S, H, K]."""
    # Importing Pallas takes a while.
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, SegmentIds, flash_attention

    block = next(size for size in FLASH_BLOCKS if query.shape[1] % size == 0)
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


def _heads_per_program(heads: int, width: int) -> int:
    """Returns the smallest number of heads whose columns fill whole registers, or 0 if it does not divide `heads`."""
    count = LANES // math.gcd(LANES, width)
    return count if heads % count == 0 else 0


def _keys_per_block(length: int, window: int) -> int:
    """Returns the number of keys for a block of queries, a multiple of LANES."""
    return min(length, -(-(BLOCK + 2 * (window // 2)) // LANES) * LANES) if window else length
