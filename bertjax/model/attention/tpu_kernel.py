"""The kernels of `fused_tpu`: attention of one row and a few heads, forward and backward.

Scores, softmax and dropout stay in vector memory (VMEM). The backward kernel recomputes them, so no [S, S] array is
saved between the two passes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention.implementation import Kernel, KernelOptions
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import hash_words, threshold
from bertjax.model.layers import NEGATIVE


def differentiable(call: Callable[..., list[jax.Array]]) -> Kernel:
    """Makes a differentiable function (options, query, key, value, mask, words) -> output.

    Args:
      call: (options, arrays, `AttentionMask.groups`, words of dropout) -> arrays. It maps [query, key, value] to
        [output], and [query, key, value, cotangent] to the gradients of query, key and value. For H heads of width K,
        all arrays are [B, S, H·K].
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def attention(options: Any, query: Any, key: Any, value: Any, mask: AttentionMask, words: jax.Array) -> jax.Array:
        return call(options, (query, key, value), mask.groups, words)[0]

    def forward(options: Any, *inputs: Any) -> tuple[jax.Array, tuple[Any, ...]]:
        return attention(options, *inputs), inputs

    def backward(options: Any, inputs: tuple[Any, ...], cotangent: jax.Array) -> tuple[Any, ...]:
        *arrays, mask, words = inputs
        arrays.append(cotangent.astype(arrays[0].dtype))
        return (*call(options, arrays, mask.groups, words), None, None)

    attention.defvjp(forward, backward)
    return attention


def _call(
    options: KernelOptions, arrays: Sequence[jax.Array], sequences: jax.Array, words: jax.Array
) -> list[jax.Array]:
    """Runs a kernel for each row and group of heads, on blocks [S, group·K] of the arrays."""
    B, S, columns = arrays[0].shape
    heads = words.shape[1]
    group, width = options.program, columns // heads
    is_forward = len(arrays) == 3
    kernel, outputs = (_forward_kernel, 1) if is_forward else (_backward_kernel, 3)
    block = pl.BlockSpec((None, S, group * width), lambda b, g: (b, 0, g))
    row_spec = pl.BlockSpec((None, 1, S), lambda b, g: (b, 0, 0))
    word_spec = pl.BlockSpec((None, None, group, 2), lambda b, g: (b, g, 0, 0), memory_space=pltpu.SMEM)
    return pl.pallas_call(
        functools.partial(kernel, options, width),
        grid=(B, heads // group),
        in_specs=[*[block] * len(arrays), row_spec, word_spec],
        out_specs=[block] * outputs,
        out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * outputs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
        cost_estimate=pl.CostEstimate(
            flops=(2 if is_forward else 5) * 2 * B * S * S * columns,
            bytes_accessed=(len(arrays) + outputs) * arrays[0].size * arrays[0].dtype.itemsize,
            transcendentals=B * heads * S * S,
        ),
        name='attention' if is_forward else 'attention_gradient',
    )(*arrays, sequences[:, None], words.reshape(B, heads // group, group, 2))


def _forward_kernel(options: KernelOptions, width: int, query, key, value, sequences, words, output) -> None:
    bias = _bias(options, sequences)
    for h, columns in enumerate(head_columns(query, width)):
        weights = softmax(query[:, columns], key[:, columns], bias)
        weights = jnp.where(_keep_mask(options, weights, words, h), weights * _scale(options), 0.0)
        output[:, columns] = dot_float32(weights.astype(value.dtype), value[:, columns], 1, 0).astype(output.dtype)


def _backward_kernel(
    options: KernelOptions, width: int, query, key, value, cotangent, sequences, words, d_query, d_key, d_value
) -> None:
    bias, dtype = _bias(options, sequences), query.dtype
    for h, columns in enumerate(head_columns(query, width)):
        q, k, v, d_output = (x[:, columns] for x in (query, key, value, cotangent))
        weights = softmax(q, k, bias)
        keep = _keep_mask(options, weights, words, h)
        dropped = jnp.where(keep, weights * _scale(options), 0.0).astype(dtype)
        d_value[:, columns] = dot_float32(dropped, d_output, 0, 0).astype(dtype)
        d_weights = jnp.where(keep, dot_float32(d_output, v, 1, 1) * _scale(options), 0.0)
        d_scores = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
        d_scores = (d_scores * width**-0.5).astype(dtype)
        d_query[:, columns] = dot_float32(d_scores, k, 1, 0).astype(dtype)
        d_key[:, columns] = dot_float32(d_scores, q, 0, 0).astype(dtype)


attention = differentiable(_call)


def head_columns(block: Any, width: int) -> list[slice]:
    """Returns the columns of each head of a block [S, group·K]."""
    return [slice(begin, begin + width) for begin in range(0, block.shape[1], width)]


def dot_float32(a: jax.Array, b: jax.Array, a_dim: int, b_dim: int) -> jax.Array:
    """Contracts dimension `a_dim` of a with `b_dim` of b, in float32."""
    # The default precision of float32 products on TPU rounds the inputs to bfloat16.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    contract = (((a_dim,), (b_dim,)), ((), ()))
    return jax.lax.dot_general(a, b, contract, precision=precision, preferred_element_type=jnp.float32)


def _bias(options: KernelOptions, sequences: Any) -> jax.Array:
    """Computes the bias of the scores, float32 [1, S] or [S, S]: 0 where a query sees a key, NEGATIVE elsewhere."""
    keys = sequences[...]  # [1, S]
    visible = keys % 2 > 0
    if options.packed:
        visible = visible & (keys // 2 == keys.reshape(-1, 1) // 2)
    if options.causal:
        shape = (keys.shape[1],) * 2
        visible = visible & (
            jax.lax.broadcasted_iota(jnp.int32, shape, 0) >= jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        )
    return jnp.where(visible, 0.0, NEGATIVE).astype(jnp.float32)


def softmax(query: jax.Array, key: jax.Array, bias: jax.Array) -> jax.Array:
    """Computes attention probabilities of query [Q, K] over key [S, K] with a bias [1 or Q, S] -> float32 [Q, S]."""
    scores = dot_float32(query, key, 1, 1) * query.shape[-1] ** -0.5 + bias
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def _scale(options: KernelOptions) -> float:
    return 1.0 / (1.0 - threshold(options.rate) / 2**32)


def _keep_mask(options: KernelOptions, weights: jax.Array, words: Any, head: int) -> jax.Array | bool:
    """Computes which weights dropout keeps, bool [S, S], or True without dropout; see `dropout.drop_weights`."""
    if not options.rate:
        return True
    query, key = (jax.lax.broadcasted_iota(jnp.uint32, weights.shape, axis) for axis in (0, 1))
    bits = hash_words(words[head, 0], words[head, 1], (query << 16) | key)
    return bits >= jnp.uint32(threshold(options.rate))
