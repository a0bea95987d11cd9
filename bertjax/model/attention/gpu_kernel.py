"""The Triton kernels of `fused_gpu`: attention for a block of queries or keys of one head, forward and backward.

A program keeps its block of queries (or keys) in registers and loops over the keys (or queries), so scores, softmax and
dropout stay on the chip. The forward pass saves two values per query for the backward pass: the maximum of the scores
and the sum of the softmax (arXiv 2205.14135, algorithm 1). Their log-sum-exp would not suffice: if every key is hidden,
the maximum is -1e9, and adding the logarithm of the sum would not change it in float32. The backward pass computes the
scores twice, once for the gradients of queries and once for those of keys and values, so that each sum has a fixed
order. A single pass would need atomic additions, whose order differs in every run.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bertjax.model.attention.implementation import KernelOptions
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import hash_words, threshold
from bertjax.model.layers import NEGATIVE

# The maximum number of positions that a program loads in an iteration of its loop. On a Hopper GPU, larger tiles spill
# registers, according to `ptxas -v` (heads of width 64 and 128, blocks of 128 positions, 8 warps).
FORWARD_TILE, BACKWARD_TILE = 64, 32


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(
    options: KernelOptions, query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array
) -> jax.Array:
    """Computes self-attention: query, key and value [B, S, H, K], words [B, H, 2] -> [B, S, H, K]."""
    return _attention_forward(options, query, key, value, mask, words)[0]


def _attention_forward(
    options: KernelOptions, query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask, words: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    inputs = (query, key, value, mask.groups, words)
    B, S, H, _ = query.shape
    per_query = jax.ShapeDtypeStruct((B, H, S), jnp.float32)
    outputs = (_like(query), per_query, per_query)
    output, maximum, total = _call(_forward_kernel, options, outputs, inputs, 2, 'attention')
    return output, (*inputs, output, maximum, total)


def _attention_backward(
    options: KernelOptions, residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[Any, ...]:
    query, key, value, sequences, words, output, maximum, total = residuals
    cotangent = cotangent.astype(query.dtype)
    # For each query, the mean of the gradients of its attention weights, weighted by the attention weights.
    mean = jnp.einsum('BSHK,BSHK->BHS', output, cotangent, preferred_element_type=jnp.float32)
    inputs = (query, key, value, sequences, words, cotangent, maximum, total, mean)
    (d_query,) = _call(_query_kernel, options, (_like(query),), inputs, 3, 'attention_query_gradient')
    d_key, d_value = _call(_key_kernel, options, (_like(key), _like(value)), inputs, 4, 'attention_key_gradient')
    return d_query, d_key, d_value, None, None


attention.defvjp(_attention_forward, _attention_backward)


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _call(
    kernel: Callable[..., None],
    options: KernelOptions,
    outputs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[jax.Array],
    products: int,
    name: str,
) -> Sequence[jax.Array]:
    """Runs `kernel` for each block, head and row, on all positions of the inputs and one block of the outputs.

    `products` is the number of matrix products [S, K] x [K, S] or [S, S] x [S, K] per head, for the cost estimate.
    """
    B, S, H, K = inputs[0].shape
    input_specs = {
        4: pl.BlockSpec((None, S, None, K), lambda i, h, b: (b, 0, h, 0)),
        2: pl.BlockSpec((None, S), lambda i, h, b: (b, 0)),
        3: pl.BlockSpec((None, None, S), lambda i, h, b: (b, h, 0)),
    }
    word_spec = pl.BlockSpec((None, None, 2), lambda i, h, b: (b, h, 0))
    size = options.program
    output_specs = {
        4: pl.BlockSpec((None, size, None, K), lambda i, h, b: (b, i, h, 0)),
        3: pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, i)),
    }
    return pl.pallas_call(
        functools.partial(kernel, options),
        grid=(S // size, H, B),
        in_specs=[word_spec if x.dtype == jnp.uint32 else input_specs[x.ndim] for x in inputs],
        out_specs=[output_specs[x.ndim] for x in outputs],
        out_shape=list(outputs),
        compiler_params=triton.CompilerParams(num_warps=max(4, size // 16), num_stages=2),
        cost_estimate=pl.CostEstimate(
            flops=products * 2 * B * S * S * H * K,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*inputs, *outputs)),
            transcendentals=B * H * S * S,
        ),
        name=name,
    )(*inputs)


def _forward_kernel(options: KernelOptions, query, key, value, sequences, words, output, maximum, total) -> None:
    block, size = _program_block(options), options.program
    count = min(FORWARD_TILE, size)
    tile = _Tile(options, sequences, words, 0)
    q = query[block, :]

    def body(i, carry):
        peak, weight, sums = carry
        keys = pl.ds(i * count, count)
        scores = tile.scores(q, key[keys, :], block, keys)
        new_peak = jnp.maximum(peak, jnp.max(scores, axis=1))
        weights, rescale = jnp.exp(scores - new_peak[:, None]), jnp.exp(peak - new_peak)
        weight = weight * rescale + jnp.sum(weights, axis=1)
        dropped = tile.drop(weights, block, keys).astype(value.dtype)
        return new_peak, weight, sums * rescale[:, None] + _product(dropped, value[keys, :], 1, 0)

    start = jnp.full(size, -jnp.inf), jnp.zeros(size), jnp.zeros((size, query.shape[1]))
    peak, weight, sums = jax.lax.fori_loop(0, key.shape[0] // count, body, start)
    output[...] = (sums / weight[:, None]).astype(output.dtype)
    maximum[...], total[...] = peak, weight


def _query_kernel(
    options: KernelOptions, query, key, value, sequences, words, cotangent, maximum, total, mean, d_query
) -> None:
    block, count = _program_block(options), min(BACKWARD_TILE, options.program)
    tile = _Tile(options, sequences, words, 0)
    q, d_output, peak, weight, center = query[block, :], cotangent[block, :], maximum[block], total[block], mean[block]

    def body(i, sums):
        keys = pl.ds(i * count, count)
        k = key[keys, :]
        weights = jnp.exp(tile.scores(q, k, block, keys) - peak[:, None]) / weight[:, None]
        d_weights = tile.drop(_product(d_output, value[keys, :], 1, 1), block, keys)
        d_scores = weights * (d_weights - center[:, None])
        return sums + _product(d_scores.astype(k.dtype), k, 1, 0)

    sums = jax.lax.fori_loop(0, key.shape[0] // count, body, jnp.zeros(d_query.shape))
    d_query[...] = (sums * query.shape[1] ** -0.5).astype(d_query.dtype)


def _key_kernel(
    options: KernelOptions, query, key, value, sequences, words, cotangent, maximum, total, mean, d_key, d_value
) -> None:
    block, count = _program_block(options), min(BACKWARD_TILE, options.program)
    tile = _Tile(options, sequences, words, 1)
    k, v = key[block, :], value[block, :]

    def body(i, sums):
        queries = pl.ds(i * count, count)
        q, d_output, peak, weight, center = (x[queries] for x in (query, cotangent, maximum, total, mean))
        weights = jnp.exp(tile.scores(k, q, queries, block) - peak[None, :]) / weight[None, :]
        keep = tile.drop(jnp.ones_like(weights), queries, block)
        d_weights = _product(v, d_output, 1, 1) * keep
        d_scores = weights * (d_weights - center[None, :])
        d_k, d_v = sums
        d_k = d_k + _product(d_scores.astype(q.dtype), q, 1, 0)
        return d_k, d_v + _product((weights * keep).astype(q.dtype), d_output, 1, 0)

    zeros = jnp.zeros(d_key.shape)
    d_k, d_v = jax.lax.fori_loop(0, query.shape[0] // count, body, (zeros, zeros))
    d_key[...] = (d_k * key.shape[1] ** -0.5).astype(d_key.dtype)
    d_value[...] = d_v.astype(d_value.dtype)


def _program_block(options: KernelOptions) -> pl.Slice:
    """Returns the positions of this program."""
    return pl.ds(pl.program_id(0) * options.program, options.program)


class _Tile:
    """The scores and the dropout of a block of queries and a block of keys. Queries are along `query_axis`, 0 or 1."""

    def __init__(self, options: KernelOptions, sequences: Any, words: Any, query_axis: int):
        self.options, self.sequences, self.query_axis = options, sequences, query_axis
        self.words = (words[0], words[1]) if options.rate else ()

    def scores(self, rows: jax.Array, columns: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """Computes scores in float32. A score is NEGATIVE if the query does not see the key."""
        key_sequences = self._along(self.sequences[keys], 1 - self.query_axis)
        visible = key_sequences & 1 == 1
        if self.options.packed:
            visible = visible & (key_sequences >> 1 == self._along(self.sequences[queries], self.query_axis) >> 1)
        if self.options.causal:
            visible = visible & (self._position(queries, self.query_axis) >= self._position(keys, 1 - self.query_axis))
        return jnp.where(visible, _product(rows, columns, 1, 1) * rows.shape[1] ** -0.5, NEGATIVE)

    def drop(self, weights: jax.Array, queries: pl.Slice, keys: pl.Slice) -> jax.Array:
        """Drops weights as `dropout.drop_weights` does."""
        if not self.options.rate:
            return weights
        least = threshold(self.options.rate)
        query, key = self._position(queries, self.query_axis), self._position(keys, 1 - self.query_axis)
        bits = hash_words(*self.words, ((query << 16) | key).astype(jnp.uint32))
        return jnp.where(bits >= jnp.uint32(least), weights * (1.0 / (1.0 - least / 2**32)), 0.0)

    def _position(self, block: pl.Slice, axis: int) -> jax.Array:
        return self._along(block.start + jnp.arange(block.size, dtype=jnp.int32), axis)

    @staticmethod
    def _along(x: jax.Array, axis: int) -> jax.Array:
        """Reshapes x [N] to a column (axis 0) or a row (axis 1)."""
        return x[:, None] if axis == 0 else x[None, :]


def _product(a: jax.Array, b: jax.Array, a_dim: int, b_dim: int) -> jax.Array:
    """Contracts dimension `a_dim` of a with `b_dim` of b, in float32."""
    # The default precision of float32 products on GPUs rounds the inputs to TensorFloat-32.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    contract = (((a_dim,), (b_dim,)), ((), ()))
    return jax.lax.dot_general(a, b, contract, precision=precision, preferred_element_type=jnp.float32)
