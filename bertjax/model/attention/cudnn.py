"""Attention on GPUs by cuDNN, as `jax.nn.dot_product_attention` calls it: for evaluation, prediction and features.

It is NVIDIA's own kernel for each of its GPUs, keeps no [S, S] array, and skips padding. JAX gives it no dropout, and
the dropout that cuDNN itself has would drop other values than ours; nor has it packed rows, but as a bias of [S, S]. A
training takes it with `model.attention_dropout=0` only; that its gradients are the same bits in every run XLA has to be
told, as `parallel/compiler_flags.py` does. Not measured here yet.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.fused_gpu import refused
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import indivisible_reason, over_mesh

PLATFORM = 'gpu'
# jax/_src/cudnn/fused_attention_stablehlo.py, check_is_flash_attention; Hopper would take widths up to 256.
MULTIPLE, WIDEST = 8, 128


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A GPU of this decade, bfloat16, no dropout, a row for each sequence, all positions as queries."""
    heads, width = key.shape[2:]
    if refusal := refused(query, key):
        return refusal
    if dropout_rate:
        return 'it drops nothing'
    if mask.sequence_ids is not None:
        return 'it takes no packed rows'
    if width % MULTIPLE or width > WIDEST:
        return f'heads of width {width}, it takes multiples of {MULTIPLE} up to {WIDEST}'
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
    """See `select.Implementation`. In a row of padding alone every query sees the first position, where others let it
    see all."""
    del dropout_rate, dropout
    heads = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    # Not 0: what a softmax over nothing gives is up to the version of cuDNN, and a NaN would reach sums.
    lengths = jnp.maximum(mask.key_mask.astype(jnp.int32).sum(axis=1), 1)  # [B]
    kernel = functools.partial(_cudnn, causal=mask.causal)
    return over_mesh(kernel, (heads, heads, heads, ('act_batch',)), heads)(query, key, value, lengths)


def _cudnn(query: jax.Array, key: jax.Array, value: jax.Array, lengths: jax.Array, *, causal: bool) -> jax.Array:
    """On one device's own part; of arrays [B, S, H, K], and [B] of how many keys are tokens."""
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation='cudnn'
    )
