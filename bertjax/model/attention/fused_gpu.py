"""Self-attention on GPUs by Triton kernels, which support dropout and packed rows, unlike `cudnn`.

For a sequence of S tokens and H heads of width K, the kernels need 4·S²·H·K operations forward and 14·S²·H·K backward
(seven products, two of which recompute the scores); `dot_product` needs 4 and 8. In bfloat16 the kernels move 8·S·H·K
bytes forward and 26·S·H·K backward, if repeated reads by several programs of a head count once. `dot_product` moves 8
and 14, plus the [S, S] arrays. In the forward pass, it writes and reads scores in float32 and weights in bfloat16,
12·S²·H bytes; the backward pass moves about the same. In BERT-large at S = 512, the [S, S] arrays cause a traffic of
2.4 GB per row and step. At 485 rows per second, this is a quarter of the 4.8 TB/s of an H200.

The kernels have not been measured on hardware yet. 'auto' chooses them for training with dropout because of this
arithmetic, tests against float64, and the compiler's report that they fit the registers of compute capability 9.0.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import compute_capability, indivisible_reason, over_mesh, platform

PLATFORM = 'gpu'
MIN_CAPABILITY = 8.0  # compute capability of Ampere, the first architecture with bfloat16 matrix products
BLOCKS = (128, 64, 32, 16)  # block sizes in positions: the first that divides S is used
WIDTHS = (16, 32, 64, 128)  # Triton's array dimensions are powers of 2, and at least 16 in matrix products


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """The kernels support bfloat16 on Ampere and later, if all positions are queries and S is a multiple of 16."""
    del mask, dropout_rate
    S, heads, width = key.shape[1:]
    if refusal := gpu_refusal(query, key):
        return refusal
    if S % BLOCKS[-1]:
        return f'sequences of {S} tokens, but it needs multiples of {BLOCKS[-1]}'
    if width not in WIDTHS:
        return f'heads of width {width}, but it needs one of {", ".join(map(str, WIDTHS))}'
    return indivisible_reason(key.shape[0], heads)


def gpu_refusal(query: jax.Array, key: jax.Array) -> str | None:
    """Returns a reason why neither our kernels nor cuDNN support query [B, Q, H, K] and key [B, S, H, K], or None."""
    if platform() != PLATFORM:
        return 'it is a kernel for GPUs'
    if compute_capability() < MIN_CAPABILITY:
        return f'a GPU of compute capability {compute_capability()}, but it needs {MIN_CAPABILITY}'
    if query.dtype != jnp.bfloat16:
        return f'it computes in bfloat16, not {query.dtype}'
    if query.shape[1] != key.shape[1]:
        return f'it computes all {key.shape[1]} positions, not the first {query.shape[1]}'
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
    from bertjax.model.attention.gpu_kernel import GpuKernelOptions, attention  # importing Pallas takes a while

    B, S, H, _ = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)
    block = next(size for size in BLOCKS if S % size == 0)
    options = GpuKernelOptions(rate, mask.sequence_ids is not None, mask.causal, block, interpret)
    array_axes = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    axes = (array_axes, array_axes, array_axes, ('act_batch', 'act_length'), ('act_batch', 'act_heads', None))
    return over_mesh(functools.partial(attention, options), axes, array_axes)(query, key, value, mask.groups, words)
