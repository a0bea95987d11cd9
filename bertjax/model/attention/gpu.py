"""The attention implementations for GPUs: cuDNN, and Triton kernels that also support dropout and packed rows.

For a sequence of S tokens and H heads of width K, the kernels need 4·S²·H·K operations forward and 14·S²·H·K backward,
where two of the seven products recompute the scores. `dot_product` needs 4·S²·H·K and 8·S²·H·K, but also writes and
reads [S, S] arrays: with float32 scores and bfloat16 weights, 12·S²·H bytes in each pass. In BERT-large at S = 512,
this traffic is 2.4 GB per row and step. At 485 rows per second, the goal in benchmarks/gpu_step.py, the traffic takes a
quarter of the 4.8 TB/s of an H200.

Therefore 'auto' prefers the kernels to `dot_product`, and cuDNN to the kernels, because NVIDIA tunes cuDNN for each of
its GPUs. The speeds have not been compared yet. On an H200, the results agree with float32 on the CPU to a relative
error of 0.0045 (docs/results/h200.json).
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.implementation import Implementation, Kernel, KernelOptions, refuse_length
from bertjax.model.attention.mask import AttentionMask
from bertjax.parallel.partition import traced_device

MIN_CAPABILITY = 8.0  # compute capability of Ampere, the first architecture with bfloat16 matrix products
BLOCKS = (128, 64, 32, 16)  # block sizes of `fused_gpu` in positions: the first that divides S is used
WIDTHS = (16, 32, 64, 128)  # Triton's array dimensions are powers of 2, and at least 16 in matrix products
# JAX's limits for the width of a head with cuDNN on Ampere (check_is_flash_attention in
# jax/_src/cudnn/fused_attention_stablehlo.py). From Hopper on, JAX allows widths up to 256.
CUDNN_WIDTH_MULTIPLE, CUDNN_MAX_WIDTH = 8, 128


class GpuImplementation(Implementation):
    """The base class of the kernels for bfloat16 on Ampere and later."""

    PLATFORM = 'gpu'

    def _refuse_device(self, query: jax.Array) -> str | None:
        try:
            capability = float(traced_device().compute_capability)
        except ValueError:  # the name of an architecture of AMD, such as gfx942
            return 'it is a kernel for GPUs of NVIDIA'
        if capability < MIN_CAPABILITY:
            return f'a GPU of compute capability {capability}, but it needs at least {MIN_CAPABILITY}'
        return None if query.dtype == jnp.bfloat16 else f'it computes in bfloat16, not {query.dtype}'


class FusedGpu(GpuImplementation):
    """The Triton kernels. All positions must be queries, and S must be a multiple of 16."""

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        if reason := refuse_length(key.shape[1], BLOCKS[-1]):
            return reason
        if key.shape[3] not in WIDTHS:
            return f'heads of width {key.shape[3]}, but it needs one of {", ".join(map(str, WIDTHS))}'
        return super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        from bertjax.model.attention.gpu_kernel import attention  # importing Pallas takes a while

        block = next(size for size in BLOCKS if query.shape[1] % size == 0)
        return functools.partial(attention, KernelOptions(rate, mask.sequence_ids is not None, mask.causal, block))


class Cudnn(GpuImplementation):
    """The kernel of cuDNN, which saves no [S, S] array and skips padding. All positions must be queries.

    `jax.nn.dot_product_attention` has no dropout, and cuDNN would drop different weights than bertjax. Packed rows
    would need an [S, S] bias. In a row without tokens, queries see only the first position, whereas they see all
    positions in other implementations. The gradients are reproducible with `parallel.devices.GPU_FLAGS`.
    """

    SUPPORTS_DROPOUT = False

    def _refuse_mask(self, mask: AttentionMask) -> str | None:
        packed = 'it does not support packed rows' if mask.sequence_ids is not None else None
        return super()._refuse_mask(mask) or packed

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        width = key.shape[3]
        if width % CUDNN_WIDTH_MULTIPLE or width > CUDNN_MAX_WIDTH:
            return f'heads of width {width}, but it needs multiples of {CUDNN_WIDTH_MULTIPLE} up to {CUDNN_MAX_WIDTH}'
        return super()._refuse_shape(key, mask)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        return _cudnn


def _cudnn(query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array) -> jax.Array:
    """Attends on one device: query, key and value [B, S, H, K]."""
    # At least 1, because some versions of cuDNN may return NaN for a softmax over no keys, and any sum with NaN is NaN.
    lengths = jnp.maximum(mask.key_mask.astype(jnp.int32).sum(axis=1), 1)  # [B]
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=mask.causal, key_value_seq_lengths=lengths, implementation='cudnn'
    )
