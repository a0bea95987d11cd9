"""Self-attention by one TPU kernel, for sequences whose scores [S, S] fit in the vector memory (VMEM).

For a sequence of S tokens and H heads of width K, the kernel needs 4·S²·H·K operations forward and 10·S²·H·K backward,
where one of the five products recomputes the scores. `dot_product` needs 4·S²·H·K and 8·S²·H·K. In bfloat16, the kernel
moves 8·S·H·K bytes forward (three arrays in, one out) and 14·S·H·K backward. `dot_product` also writes and reads arrays
[S, S]. At S = 512 and K = 64, one such write, 2·S²·H bytes in bfloat16, is twice the traffic of the forward kernel.

The kernel has not been measured on hardware yet. 'auto' prefers it on TPU because of this arithmetic.
"""

import functools
import math

import jax

from bertjax.model.attention.implementation import Implementation, Kernel, KernelOptions, refuse_length
from bertjax.model.attention.mask import AttentionMask
from bertjax.parallel.partition import shard_count, traced_device

UNSUPPORTED_KINDS = ('TPU v2', 'TPU v3')  # Mosaic does not compile for these
MAX_LENGTH = 512  # tokens: the backward kernel needs about nine float32 [S, S] arrays, 9 MiB of the 16 available
LANES = 128  # width of a vector register


class TpuImplementation(Implementation):
    """The base class of the kernels for TPU v4 and later."""

    PLATFORM = 'tpu'
    MERGES_HEADS = True

    def _refuse_device(self, query: jax.Array) -> str | None:
        kind = traced_device().device_kind
        return f'it is a kernel for TPU v4 and later, not for {kind}' if kind in UNSUPPORTED_KINDS else None

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        B, _, heads, width = key.shape
        if B % shard_count('act_batch'):
            return f'{B} rows cannot be split evenly over {shard_count("act_batch")} devices'
        local_heads, rest = divmod(heads, shard_count('act_heads'))
        if rest or not heads_per_program(local_heads, width):
            return f'{heads} heads of width {width} do not form groups of {LANES} columns on each device'
        return None


class FusedTpu(TpuImplementation):
    """The kernel supports row lengths up to MAX_LENGTH that are multiples of LANES, if all positions are queries."""

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        return refuse_length(key.shape[1], LANES, MAX_LENGTH) or super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        from bertjax.model.attention.tpu_kernel import attention  # importing Pallas takes a while

        group = heads_per_program(query.shape[2] // shard_count('act_heads'), query.shape[3])
        options = KernelOptions(rate, mask.sequence_ids is not None, mask.causal, group)
        return functools.partial(attention, options)


def heads_per_program(heads: int, width: int) -> int:
    """Returns the smallest number of heads whose columns fill whole registers; 0 if `heads` is not a multiple of it."""
    count = LANES // math.gcd(LANES, width)
    return count if heads % count == 0 else 0
