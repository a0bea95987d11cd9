"""Compares the estimates of `bertjax.cost` for Pallas kernels and for XLA's version of the same computations.

The estimates are seconds on a TPU v5e.

python tests/cost/kernel_steps.py
"""

import json
import os
from collections.abc import Callable

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import SingleDeviceSharding

from bertjax.cost.estimate import Estimate, Rates, estimate
from bertjax.cost.hlo import parse
from bertjax.parallel.topology import generation_of, topology_devices

ROWS, WIDTH, OUT, BLOCK = 8192, 1024, 4096, 256


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    """Returns x [R, D] times w [D, F], computed by a kernel of one block of rows and columns per grid step."""

    def kernel(x_block, w_block, y_block):
        y_block[...] = jnp.dot(x_block[...], w_block[...], preferred_element_type=jnp.float32).astype(y_block.dtype)

    (R, D), F = x.shape, w.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(R // BLOCK, F // BLOCK),
        in_specs=[pl.BlockSpec((BLOCK, D), lambda i, j: (i, 0)), pl.BlockSpec((D, BLOCK), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((BLOCK, BLOCK), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((R, F), x.dtype),
        cost_estimate=pl.CostEstimate(
            flops=2 * R * D * F, transcendentals=0, bytes_accessed=(R * D + D * F + R * F) * x.dtype.itemsize
        ),
    )(x, w)


def total(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns x + y, computed by a kernel of one block of rows per grid step."""

    def kernel(x_block, y_block, z_block):
        z_block[...] = x_block[...] + y_block[...]

    block = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(x.shape[0] // 64,),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        cost_estimate=pl.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=3 * x.nbytes),
    )(x, y)


def step(multiply: Callable, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes forward pass, loss and gradient of one projection, with `multiply` for the three products."""
    y = multiply(x, w)
    dy = 2 * y
    return multiply(dy, w.T), w - multiply(x.T, dy)


def compile_and_estimate(function: Callable, *shapes: jax.ShapeDtypeStruct) -> Estimate:
    """Returns the estimate of `function` on one chip."""
    chip = generation_of('v5e:2x2')
    text = jax.jit(function).lower(*shapes).compile().as_text()
    return estimate(parse(text), Rates(chip.clock_hz, 197e12, chip.hbm_bandwidth, lambda chips: 1.0), chips=1)


if __name__ == '__main__':
    device = SingleDeviceSharding(topology_devices('v5e:2x2')[0])

    def array(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

    x, w, f = array(ROWS, WIDTH), array(WIDTH, OUT), array(ROWS, OUT, dtype=jnp.float32)
    cases = {
        'product': (product, jnp.matmul, (x, w)),
        'sum': (total, jnp.add, (f, f)),
        'step': (lambda x, w: step(product, x, w), lambda x, w: step(jnp.matmul, x, w), (x, w)),
    }
    results = {}
    for name, (kernel, plain, shapes) in cases.items():
        ours = compile_and_estimate(kernel, *shapes)
        results[name] = {
            'kernel': ours.step_s,
            'xla': compile_and_estimate(plain, *shapes).step_s,
            'modelled_share': ours.modelled_share,
        }
    print(json.dumps(results, indent=2))
