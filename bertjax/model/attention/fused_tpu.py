"""Self-attention by one TPU kernel, for sequences of which a whole row of scores fits the memory beside the cores.

With S tokens and H heads of width K a sequence costs a forward pass 4·S²·H·K operations, and a backward pass 10 (five
products, one of which computes the scores again), where the plain form has 4 and 8. In bfloat16 the kernels read and
write 8·S·H·K bytes forward (three arrays in, one out) and 14 backward. The plain form moves the same, and besides each
[S, S] array as often as it is written or read: 4·S²·H bytes in float32, 2 in bfloat16. At S = 512 and K = 64 one pass
over the scores in bfloat16 is already twice what the whole forward kernel moves.

Of hardware no figure has been measured yet: that the kernel is the first choice on a TPU rests on this arithmetic.
"""

import functools
import math

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import device_kind, over_mesh, platform, shard_count

PLATFORM = 'tpu'
EARLIER = ('TPU v2', 'TPU v3')  # for which Mosaic compiles nothing
LONGEST = 512  # tokens: the backward kernel has about nine [S, S] arrays of float32, 9 MiB of the 16 that it may use
LANES = 128  # width of a vector register


def supports(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
    """A TPU, all positions as queries, lengths of whole registers."""
    del mask, dropout_rate
    S, heads, width = key.shape[1:]
    if platform() != PLATFORM:
        return 'it is a kernel for TPUs'
    if device_kind() in EARLIER:
        return f'a {device_kind()}, it is a kernel for v4 and later'
    if query.shape[1] != S:
        return f'it computes all {S} positions, not the first {query.shape[1]}'
    if S % LANES or S > LONGEST:
        return f'sequences of {S} tokens, it takes multiples of {LANES} up to {LONGEST}'
    rows, chips = key.shape[0], shard_count('act_batch')
    if rows % chips:
        return f'{rows} rows do not divide over {chips} devices'
    own, rest = divmod(heads, shard_count('act_heads'))
    if rest or not heads_together(own, width):
        return f'{heads} heads of width {width} do not come in groups of {LANES} columns on each device'
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
    from bertjax.model.attention.tpu_kernel import TpuKernelOptions, attention  # Pallas takes a while to import

    B, _, H, K = query.shape
    rate = dropout_rate if dropout is not None else 0.0
    words = attention_words(dropout, H) if rate else jnp.zeros((B, H, 2), jnp.uint32)

    options = TpuKernelOptions(
        rate, heads_together(H // shard_count('act_heads'), K), mask.sequence_ids is not None, mask.causal, interpret
    )

    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))  # [B, S, H·K]
    columns = ('act_batch', 'act_length', 'act_heads')
    axes = (columns, columns, columns, ('act_batch', 'act_length'), ('act_batch', 'act_heads', None))
    kernel = over_mesh(functools.partial(attention, options), axes, columns)
    return kernel(*flat, mask.groups, words).reshape(query.shape)


def heads_together(heads: int, width: int) -> int:
    """Heads that a program works on: as few as fill whole registers; 0 where none do."""
    count = LANES // math.gcd(LANES, width)
    return count if heads % count == 0 else 0
