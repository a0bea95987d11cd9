"""The kernels of `blocks_tpu`: attention of one row and a few heads, forward and backward.

A program keeps the columns of its heads in vector memory and loops over blocks of queries. The backward kernel
recomputes the scores, and sums the gradients of keys and values over the blocks in float32.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention.tpu import BLOCK
from bertjax.model.attention.tpu_kernel import differentiable, dot_float32, head_columns, softmax
from bertjax.model.layers import NEGATIVE

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class BlockOptions:
    """The static options of the kernels."""

    reach: int  # the number of positions that a query sees on each side
    keys: int  # the number of keys that a block of queries is multiplied with
    group: int  # heads per program
    width: int  # the width of a head

    def first_key(self, block: int | jax.Array, length: int) -> int | jax.Array:
        """Returns the position of the first key for a block of queries, clipped so that all keys are inside the row."""
        return jnp.clip(block * BLOCK - (self.keys - BLOCK) // 2, 0, length - self.keys)

    def alignment(self, length: int) -> int:
        """Returns a common divisor of the positions that `first_key` returns."""
        return math.gcd((self.keys - BLOCK) // 2, BLOCK) if self.keys < length else length


def _call(
    options: BlockOptions, arrays: Sequence[jax.Array], sequences: jax.Array, words: jax.Array
) -> list[jax.Array]:
    """Runs a kernel for each row and group of heads, on blocks [S, group·width] of the arrays.

    The arguments are those of `call` in `tpu_kernel.differentiable`. `words` is not used, because there is no dropout.
    """
    is_forward = len(arrays) == 3
    kernel, outputs = (_forward_kernel, 1) if is_forward else (_backward_kernel, 3)
    (B, S, columns), blocks = arrays[0].shape, arrays[0].shape[1] // BLOCK
    lanes = options.group * options.width
    near = options.first_key(jnp.arange(blocks), S)[:, None] + jnp.arange(options.keys)  # [blocks, keys]
    ids = (sequences.reshape(B, blocks, BLOCK), sequences[:, near])
    block = pl.BlockSpec((None, S, lanes), lambda b, g: (b, 0, g))
    id_specs = [pl.BlockSpec((None, *x.shape[1:]), lambda b, g: (b, 0, 0)) for x in ids]
    shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    sums = [pltpu.VMEM((S, lanes), jnp.float32)] * (outputs - 1)  # for the gradients of key and value
    item = arrays[0].dtype.itemsize
    vmem = S * lanes * (2 * (len(arrays) + outputs) * item + 4 * len(sums))  # blocks have two buffers each
    return pl.pallas_call(
        functools.partial(kernel, options),
        grid=(B, columns // lanes),
        in_specs=[*[block] * len(arrays), *id_specs],
        out_specs=[block] * outputs,
        out_shape=[shape] * outputs,
        scratch_shapes=sums,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=('parallel', 'parallel'), vmem_limit_bytes=max(16 * _MIB, vmem + 8 * _MIB)
        ),
        cost_estimate=pl.CostEstimate(
            flops=(2 if is_forward else 5) * 2 * B * S * options.keys * columns,
            bytes_accessed=(len(arrays) + outputs) * arrays[0].size * item,
            transcendentals=B * S * options.keys * columns // options.width,
        ),
        name='block_attention' if is_forward else 'block_attention_gradient',
    )(*arrays, *ids)


def _forward_kernel(options: BlockOptions, query, key, value, query_ids, key_ids, output) -> None:
    def compute(queries: Any, keys: Any, bias: jax.Array) -> None:
        for columns in head_columns(query, options.width):
            weights = softmax(query[queries, columns], key[keys, columns], bias)
            attended = dot_float32(weights.astype(value.dtype), value[keys, columns], 1, 0)
            output[queries, columns] = attended.astype(output.dtype)

    _for_blocks(options, query_ids, key_ids, query.shape[0], compute)


def _backward_kernel(
    options: BlockOptions, query, key, value, cotangent, query_ids, key_ids, d_query, d_key, d_value, key_sum, value_sum
) -> None:
    key_sum[...], value_sum[...] = jnp.zeros_like(key_sum), jnp.zeros_like(value_sum)
    dtype = query.dtype

    def compute(queries: Any, keys: Any, bias: jax.Array) -> None:
        for columns in head_columns(query, options.width):
            q, d_output = query[queries, columns], cotangent[queries, columns]
            k, v = key[keys, columns], value[keys, columns]
            weights = softmax(q, k, bias)
            value_sum[keys, columns] += dot_float32(weights.astype(dtype), d_output, 0, 0)
            d_weights = dot_float32(d_output, v, 1, 1)
            d_scores = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
            d_scores = (d_scores * options.width**-0.5).astype(dtype)
            d_query[queries, columns] = dot_float32(d_scores, k, 1, 0).astype(dtype)
            key_sum[keys, columns] += dot_float32(d_scores, q, 0, 0)

    _for_blocks(options, query_ids, key_ids, query.shape[0], compute)
    d_key[...], d_value[...] = key_sum[...].astype(dtype), value_sum[...].astype(dtype)


def _for_blocks(
    options: BlockOptions, query_ids: Any, key_ids: Any, length: int, compute: Callable[[Any, Any, jax.Array], None]
) -> None:
    """Calls `compute` for each block of queries, with the slices of its queries and keys and the bias of the scores."""

    def block(i: jax.Array, _: None) -> None:
        first = pl.multiple_of(options.first_key(i, length), options.alignment(length))
        begin = pl.multiple_of(i * BLOCK, BLOCK)
        ids, near = query_ids[pl.ds(i, 1), :], key_ids[pl.ds(i, 1), :]  # [1, BLOCK], [1, keys]
        shape = (BLOCK, options.keys)
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        visible = jnp.abs(begin + rows - first - columns) <= options.reach
        visible = visible & (near % 2 > 0) & (near // 2 == ids.reshape(-1, 1) // 2)
        compute(pl.ds(begin, BLOCK), pl.ds(first, options.keys), jnp.where(visible, 0.0, NEGATIVE))

    jax.lax.fori_loop(0, length // BLOCK, block, None)


attention = differentiable(_call)
