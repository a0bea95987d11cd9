"""Attention on GPUs by cuDNN, through `jax.nn.dot_product_attention`, for calls without dropout or packed rows.

The kernel saves no [S, S] array and skips padding. `jax.nn.dot_product_attention` has no dropout, and cuDNN would drop
different weights than bertjax, so training uses cuDNN only with `model.attention_dropout=0`. Packed rows would need an
[S, S] bias. The gradients are reproducible with the XLA flags of `parallel/devices.py`. The speed has not been
measured yet. 'auto' prefers cuDNN to `fused_gpu`, because NVIDIA tunes cuDNN for each of its GPUs.
"""

import jax
import jax.numpy as jnp

from bertjax.model.attention.fused_gpu import GpuImplementation
from bertjax.model.attention.implementation import Kernel
from bertjax.model.attention.mask import AttentionMask

# JAX's limits for the width of a head on Ampere (check_is_flash_attention in
# jax/_src/cudnn/fused_attention_stablehlo.py). From Hopper on, JAX allows widths up to 256.
WIDTH_MULTIPLE, MAX_WIDTH = 8, 128


class Cudnn(GpuImplementation):
    """The kernel of cuDNN. It does not support dropout or packed rows, and all positions must be queries.

    In a row without tokens, queries see only the first position. In other implementations, they see all positions.
    """

    SUPPORTS_DROPOUT = False

    def _refuse_mask(self, mask: AttentionMask) -> str | None:
        packed = 'it does not support packed rows' if mask.sequence_ids is not None else None
        return super()._refuse_mask(mask) or packed

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        width = key.shape[3]
        if width % WIDTH_MULTIPLE or width > MAX_WIDTH:
            return f'heads of width {width}, but it needs multiples of {WIDTH_MULTIPLE} up to {MAX_WIDTH}'
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
