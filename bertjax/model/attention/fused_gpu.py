"""Self-attention on GPUs by Triton kernels: with dropout inside and for packed rows, which `cudnn` has not.

With S tokens and H heads of width K a sequence costs a forward pass 4·S²·H·K operations and a backward pass 14 (seven
products, two of which compute the scores again), where the plain form has 4 and 8. In bfloat16 the kernels move
8·S·H·K bytes forward and 26 backward, what several programs of a head read counted once; the plain form 8 and 14, and
besides the [S, S] arrays: forward it writes and reads scores in float32, and weights in bfloat16, 12·S²·H bytes, and
backward about as many. In BERT-large at S = 512 these are 2.4 GB a row and step, for 485 rows a second a quarter of the
4.8 TB/s of an H200; at S = 128 a sixteenth of that a row.

Nothing has been measured on hardware yet: that the kernels are `auto`'s choice for training with dropout rests on this
arithmetic, on tests beside float64, and on the compiler's word that they fit the registers of compute capability 9.0.
"""

import functools

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import compute_capability, indivisible_reason, over_mesh, platform

PLATFORM = 'gpu'
LEAST = 8.0  # compute capability, Ampere: matrix products of bfloat16
BLOCKS = (128, 64, 32, 16)  # positions of a block, the first that divides a sequence
WIDTHS = (16, 32, 64, 128)  # Triton's arrays have powers of 2 on each side, its matrix products at least 16


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A GPU of this decade, bfloat16, all positions as queries, lengths of whole blocks."""
    del mask, dropout_rate
    S, heads, width = key.shape[1:]
    if refusal := refused(query, key):
        return refusal
    if S % BLOCKS[-1]:
        return f'sequences of {S} tokens, it takes multiples of {BLOCKS[-1]}'
    if width not in WIDTHS:
        return f'heads of width {width}, it takes {", ".join(map(str, WIDTHS))}'
    return indivisible_reason(key.shape[0], heads)


def refused(query: jax.Array, key: jax.Array) -> str | None:
    """Why no kernel for GPUs takes query [B, Q, H, K] and key [B, S, H, K], ours or cuDNN's; None: they may."""
    if platform() != PLATFORM:
        return 'it is a kernel for GPUs'
    if compute_capability() < LEAST:
        return f'a GPU of compute capability {compute_capability()}, it needs {LEAST}'
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
    """See `select.Implementation`. With `interpret` the kernels are run by JAX itself, on any device."""
    from bertjax.model.attention.gpu_kernel import GpuKernelOptions, attention  # Pallas takes a while to import

    B, S, H, _ = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)
    block = next(size for size in BLOCKS if S % size == 0)
    options = GpuKernelOptions(rate, mask.sequence_ids is not None, mask.causal, block, interpret)
    heads = ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
    axes = (heads, heads, heads, ('act_batch', 'act_length'), ('act_batch', 'act_heads', None))
    return over_mesh(functools.partial(attention, options), axes, heads)(query, key, value, mask.groups, words)
