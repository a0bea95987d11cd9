"""Self-attention by Triton kernels, for GPUs: with dropout and packed rows, which cuDNN's takes from nobody.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import over_mesh, parts_of, platform

PLATFORM = 'gpu'
BLOCKS = (128, 64, 32, 16)  # positions, the first that divides a sequence
WIDTHS = (16, 32, 64, 128)


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
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
    """See `select.Implementation`. With `interpret` the kernels are run by JAX itself, on any device."""
    from bertjax.model.attention.gpu_kernel import Options, attention  # Pallas takes a while to import

    B, S, H, _ = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)
    block = next(size for size in BLOCKS if S % size == 0)
    options = Options(rate, mask.sequence_ids is not None, mask.causal, (block, min(block, 64)), interpret)
    heads = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    axes = (heads, heads, heads, ('act_batch', 'act_length'), ('act_batch', 'act_heads', None))
    return over_mesh(functools.partial(attention, options), axes, heads)(query, key, value, mask.groups, words)
