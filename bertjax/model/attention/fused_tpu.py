"""Self-attention by one TPU kernel, for sequences whose scores [S, S] fit the vector memory (VMEM).

For a sequence of S tokens and H heads of width K, the kernel needs 4·S²·H·K operations forward and 10·S²·H·K backward
(five products, one of which recomputes the scores); `dot_product` needs 4 and 8. In bfloat16 the kernels read and write
8·S·H·K bytes forward (three arrays in, one out) and 14·S·H·K backward. `dot_product` also moves these bytes. In
addition, it writes and reads arrays [S, S]; each write or read moves 4·S²·H bytes in float32, 2·S²·H in bfloat16. At
S = 512 and K = 64, one pass over the scores in bfloat16 moves twice as many bytes as the whole forward kernel.

The kernel has not been measured on hardware yet. It is the first choice on TPU because of this arithmetic.
"""

import functools
import math

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import device_kind, over_mesh, platform, shard_count

PLATFORM = 'tpu'
UNSUPPORTED_KINDS = ('TPU v2', 'TPU v3')  # Mosaic does not compile for these
MAX_LENGTH = 512  # tokens: the backward kernel needs about nine float32 [S, S] arrays, 9 MiB of the 16 available
LANES = 128  # width of a vector register


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """The kernel supports TPU v4 and later, if all positions are queries and S is a multiple of LANES."""
    del mask, dropout_rate
    S = key.shape[1]
    if platform() != PLATFORM:
        return 'it is a kernel for TPUs'
    if device_kind() in UNSUPPORTED_KINDS:
        return f'it is a kernel for TPU v4 and later, not for {device_kind()}'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    if S % LANES or S > MAX_LENGTH:
        return f'sequences of {S} tokens, but it needs multiples of {LANES} up to {MAX_LENGTH}'
    return split_reason(key)


def split_reason(key: jax.Array) -> str | None:
    """Returns why key [B, S, H, K] cannot be split over the devices into heads that fill registers; None if it can."""
    B, _, heads, width = key.shape
    if B % shard_count('act_batch'):
        return f'{B} rows cannot be split evenly over {shard_count("act_batch")} devices'
    local_heads, rest = divmod(heads, shard_count('act_heads'))
    if rest or not heads_per_program(local_heads, width):
        return f'{heads} heads of width {width} do not form groups of {LANES} columns on each device'
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
    from bertjax.model.attention.tpu_kernel import TpuKernelOptions, attention  # importing Pallas takes a while

    B, _, H, K = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)

    options = TpuKernelOptions(
        rate, heads_per_program(H // shard_count('act_heads'), K), mask.sequence_ids is not None, mask.causal, interpret
    )

    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))  # [B, S, H·K]
    columns = ('act_batch', 'act_length', 'act_heads')
    axes = (columns, columns, columns, ('act_batch', 'act_length'), ('act_batch', 'act_heads', None))
    kernel = over_mesh(functools.partial(attention, options), axes, columns)
    return kernel(*flat, mask.groups, words).reshape(query.shape)


def heads_per_program(heads: int, width: int) -> int:
    """Returns the smallest number of heads whose columns fill whole registers; 0 if it does not divide `heads`."""
    count = LANES // math.gcd(LANES, width)
    return count if heads % count == 0 else 0
