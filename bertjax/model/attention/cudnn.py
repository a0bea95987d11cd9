"""Attention on GPUs by cuDNN, through `jax.nn.dot_product_attention`, for evaluation, prediction and features.

NVIDIA tunes cuDNN's kernel for each of its GPUs. The kernel saves no [S, S] array and skips padding. JAX does not pass
dropout to cuDNN, and cuDNN's dropout masks would differ from those of bertjax, so training uses cuDNN only with
`model.attention_dropout=0`. Packed rows would need an [S, S] bias, so they use another implementation. The gradients
are reproducible with the XLA flags of `parallel/compiler_flags.py`. The speed has not been measured yet.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.fused_gpu import gpu_refusal
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import indivisible_reason, over_mesh

PLATFORM = 'gpu'
# From check_is_flash_attention in jax/_src/cudnn/fused_attention_stablehlo.py; Hopper supports widths up to 256.
WIDTH_MULTIPLE, MAX_WIDTH = 8, 128


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """cuDNN supports bfloat16 on Ampere and later, without dropout and row packing, if all positions are queries."""
    heads, width = key.shape[2:]
    if refusal := gpu_refusal(query, key):
        return refusal
    if dropout_rate:
        return 'it does not support dropout'
    if mask.sequence_ids is not None:
        return 'it does not support packed rows'
    if width % WIDTH_MULTIPLE or width > MAX_WIDTH:
        return f'heads of width {width}, but it needs multiples of {WIDTH_MULTIPLE} up to {MAX_WIDTH}'
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

    If a row has no tokens, every query sees the first position, whereas in other implementations it sees all positions.
    """
    del dropout_rate, dropout
    array_axes = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    # At least 1, because the softmax over no keys may be NaN in some versions of cuDNN, and NaN would spread to sums.
    lengths = jnp.maximum(mask.key_mask.astype(jnp.int32).sum(axis=1), 1)  # [B]
    kernel = functools.partial(_cudnn, causal=mask.causal)
    return over_mesh(kernel, (array_axes, array_axes, array_axes, ('act_batch',)), array_axes)(
        query, key, value, lengths
    )


def _cudnn(query: jax.Array, key: jax.Array, value: jax.Array, lengths: jax.Array, *, causal: bool) -> jax.Array:
    """Attends on one device: query, key and value [B, S, H, K]; lengths [B], the number of tokens in each row."""
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation='cudnn'
    )
