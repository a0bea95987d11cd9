"""The kernels of fused_gpu.py: attention of a block of queries or keys of one head, forward and backward, by Triton.

A program keeps its block in registers and goes through the other side block by block, so that scores, softmax and
dropout never leave the chip. Of the softmax two numbers a query are kept for the backward pass, its maximum and its
sum (arXiv 2205.14135, algorithm 1; their logarithm in one number would lose the sum where every key is hidden). The
backward pass computes the scores twice, once for the gradient of a block of queries and once for that of a block of
keys: sums in a fixed order, where one pass would add up by atomic operations, in another order in every run.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bertjax.model.dropout import hashed, threshold
from bertjax.model.layers import NEGATIVE

# Positions of the other side that a program takes at a time: with heads of 64 and 128, and 8 warps for blocks of 128,
# the most of which the registers of a Hopper GPU hold all that is added up (by `ptxas -v`, nothing is spilled).
FORWARD, BACKWARD = 64, 32


@dataclasses.dataclass(frozen=True)
class GpuKernelOptions:
    """What a kernel is compiled for.

    Attributes:
      rate: of dropout.
      packed: a row holds several sequences.
      causal: no query sees a key to its right.
      block: positions that a program keeps; a divisor of S, a power of 2.
      interpret: run by JAX itself, on any device.
    """

    rate: float
    packed: bool
    causal: bool
    block: int
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(options: GpuKernelOptions, query: Any, key: Any, value: Any, sequences: Any, words: Any) -> jax.Array:
    """Self-attention of all positions.

    Args:
      options: see there.
      query, key, value: [B, S, H, K].
      sequences: int32 [B, S], of each position twice the number of its sequence, and 1 more where it is no padding.
      words: uint32 [B, H, 2], of `dropout.attention_words`.

    Returns:
      [B, S, H, K].
    """
    return _attention_forward(options, query, key, value, sequences, words)[0]


def _attention_forward(options: GpuKernelOptions, *inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    query = inputs[0]
    B, S, H, _ = query.shape
    number = jax.ShapeDtypeStruct((B, H, S), jnp.float32)
    output, top, total = _call(_forward_kernel, options, (_like(query), number, number), inputs, 2, 'attention')
    return output, (*inputs, output, top, total)


def _attention_backward(
    options: GpuKernelOptions, saved: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[Any, ...]:
    query, key, value, sequences, words, output, top, total = saved
    cotangent = cotangent.astype(query.dtype)
    # Of each query the mean of its weights' gradients, weighted by them.
    mean = jnp.einsum('BSHK,BSHK->BHS', output, cotangent, preferred_element_type=jnp.float32)
    inputs = (query, key, value, sequences, words, cotangent, top, total, mean)
    (d_query,) = _call(_query_kernel, options, (_like(query),), inputs, 3, 'attention_query_gradient')
    d_key, d_value = _call(_key_kernel, options, (_like(key), _like(value)), inputs, 4, 'attention_key_gradient')
    return d_query, d_key, d_value, None, None


attention.defvjp(_attention_forward, _attention_backward)


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _call(
    kernel: Callable[..., None],
    options: GpuKernelOptions,
    outputs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[jax.Array],
    products: int,
    name: str,
) -> Sequence[jax.Array]:
    """Runs `kernel` for each block, head and row: on all of the head's inputs, and the block's part of the outputs."""
    B, S, H, K = inputs[0].shape
    whole = {
        4: pl.BlockSpec((None, S, None, K), lambda i, h, b: (b, 0, h, 0)),
        2: pl.BlockSpec((None, S), lambda i, h, b: (b, 0)),
        3: pl.BlockSpec((None, None, S), lambda i, h, b: (b, h, 0)),
    }
    of_head = pl.BlockSpec((None, None, 2), lambda i, h, b: (b, h, 0))
    size = options.block
    part = {
        4: pl.BlockSpec((None, size, None, K), lambda i, h, b: (b, i, h, 0)),
        3: pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, i)),
    }
    return pl.pallas_call(
        functools.partial(kernel, options),
        grid=(S // size, H, B),
        in_specs=[of_head if x.dtype == jnp.uint32 else whole[x.ndim] for x in inputs],
        out_specs=[part[x.ndim] for x in outputs],
        out_shape=list(outputs),
        compiler_params=triton.CompilerParams(num_warps=max(4, size // 16), num_stages=2),
        cost_estimate=pl.CostEstimate(
            flops=products * 2 * B * S * S * H * K,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*inputs, *outputs)),
            transcendentals=B * H * S * S,
        ),
        interpret=options.interpret,
        name=name,
    )(*inputs)


def _forward_kernel(options: GpuKernelOptions, query, key, value, sequences, words, output, top, total) -> None:
    own, size = _own(options), options.block
    count = min(FORWARD, size)
    tile = _Tile(options, sequences, words, 0)
    q = query[own, :]

    def body(i, carry):
        highest, weight, mixed = carry
        keys = pl.ds(i * count, count)
        scores = tile.scores(q, key[keys, :], own, keys)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, shrunk = jnp.exp(scores - higher[:, None]), jnp.exp(highest - higher)
        weight = weight * shrunk + jnp.sum(weights, axis=1)
        dropped = tile.drop(weights, own, keys).astype(value.dtype)
        return higher, weight, mixed * shrunk[:, None] + _product(dropped, value[keys, :], 1, 0)

    start = jnp.full(size, -jnp.inf), jnp.zeros(size), jnp.zeros((size, query.shape[1]))
    highest, weight, mixed = jax.lax.fori_loop(0, key.shape[0] // count, body, start)
    output[...] = (mixed / weight[:, None]).astype(output.dtype)
    top[...], total[...] = highest, weight


def _query_kernel(
    options: GpuKernelOptions, query, key, value, sequences, words, cotangent, top, total, mean, d_query
) -> None:
    own, count = _own(options), min(BACKWARD, options.block)
    tile = _Tile(options, sequences, words, 0)
    q, d_output, highest, weight, middle = query[own, :], cotangent[own, :], top[own], total[own], mean[own]

    def body(i, sums):
        keys = pl.ds(i * count, count)
        k = key[keys, :]
        weights = jnp.exp(tile.scores(q, k, own, keys) - highest[:, None]) / weight[:, None]
        d_weights = tile.drop(_product(d_output, value[keys, :], 1, 1), own, keys)
        d_scores = weights * (d_weights - middle[:, None])
        return sums + _product(d_scores.astype(k.dtype), k, 1, 0)

    sums = jax.lax.fori_loop(0, key.shape[0] // count, body, jnp.zeros(d_query.shape))
    d_query[...] = (sums * query.shape[1] ** -0.5).astype(d_query.dtype)


def _key_kernel(
    options: GpuKernelOptions, query, key, value, sequences, words, cotangent, top, total, mean, d_key, d_value
) -> None:
    own, count = _own(options), min(BACKWARD, options.block)
    tile = _Tile(options, sequences, words, 1)
    k, v = key[own, :], value[own, :]

    def body(i, sums):
        queries = pl.ds(i * count, count)
        q, d_output, highest, weight, middle = (x[queries] for x in (query, cotangent, top, total, mean))
        weights = jnp.exp(tile.scores(k, q, queries, own) - highest[None, :]) / weight[None, :]
        kept = tile.drop(jnp.ones_like(weights), queries, own)
        d_weights = _product(v, d_output, 1, 1) * kept
        d_scores = weights * (d_weights - middle[None, :])
        of_key, of_value = sums
        of_key = of_key + _product(d_scores.astype(q.dtype), q, 1, 0)
        return of_key, of_value + _product((weights * kept).astype(q.dtype), d_output, 1, 0)

    zeros = jnp.zeros(d_key.shape)
    of_key, of_value = jax.lax.fori_loop(0, query.shape[0] // count, body, (zeros, zeros))
    d_key[...] = (of_key * key.shape[1] ** -0.5).astype(d_key.dtype)
    d_value[...] = of_value.astype(d_value.dtype)


def _own(options: GpuKernelOptions) -> pl.Slice:
    """The positions that this program keeps."""
    return pl.ds(pl.program_id(0) * options.block, options.block)


class _Tile:
    """Scores of a block of queries and a block of keys: [queries, keys], or with `queries` = 1 [keys, queries]."""

    def __init__(self, options: GpuKernelOptions, sequences: Any, words: Any, queries: int):
        self.options, self.sequences, self.queries = options, sequences, queries
        self.words = (words[0], words[1]) if options.rate else ()

    def scores(self, rows: jax.Array, columns: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """float32, NEGATIVE where a query does not see a key."""
        of_key = self._along(self.sequences[keys], 1 - self.queries)
        seen = of_key & 1 == 1
        if self.options.packed:
            seen = seen & (of_key >> 1 == self._along(self.sequences[queries], self.queries) >> 1)
        if self.options.causal:
            seen = seen & (self._position(queries, self.queries) >= self._position(keys, 1 - self.queries))
        return jnp.where(seen, _product(rows, columns, 1, 1) * rows.shape[1] ** -0.5, NEGATIVE)

    def drop(self, weights: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """As `dropout.drop_attention` does it."""
        if not self.options.rate:
            return weights
        least = threshold(self.options.rate)
        query, key = self._position(queries, self.queries), self._position(keys, 1 - self.queries)
        bits = hashed(*self.words, ((query << 16) | key).astype(jnp.uint32))
        return jnp.where(bits >= jnp.uint32(least), weights * (1.0 / (1.0 - least / 2**32)), 0.0)

    def _position(self, block: pl.Slice, axis: int) -> jax.Array:
        return self._along(block.start + jnp.arange(block.size, dtype=jnp.int32), axis)

    @staticmethod
    def _along(x: jax.Array, axis: int) -> jax.Array:
        """[N] as a column (axis 0) or a row (axis 1)."""
        return x[:, None] if axis == 0 else x[None, :]


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """Matrix product over dimension `of_a` of a and `of_b` of b, float32."""
    # Of float32 the product itself is asked to be exact: the default on GPUs rounds to TensorFloat-32.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    contract = (((of_a,), (of_b,)), ((), ()))
    return jax.lax.dot_general(a, b, contract, precision=precision, preferred_element_type=jnp.float32)
