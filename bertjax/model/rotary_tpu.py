"""A TPU kernel that rotates queries and keys. The forward and the backward kernel each pass over memory once.

The halves of a head do not fill a register, so the compiler would copy them into another layout and back. The kernel
exchanges the halves inside registers. It has not been measured on hardware yet.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128  # width of a vector register
BLOCK = 128  # positions per program


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rotate(width: int, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates all heads of x [B, S, H·K] as `Rotary.rotate` does. The width K of a head divides 128.

    `cos` and `sin` are float32 [B, S, 128], for the columns of a register (see `register_columns`).
    """
    B, S, columns = x.shape
    block, table = (pl.BlockSpec((None, BLOCK, n), lambda b, i: (b, i, 0)) for n in (columns, LANES))
    return pl.pallas_call(
        functools.partial(_kernel, width),
        grid=(B, S // BLOCK),
        in_specs=[block, table, table],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
        cost_estimate=pl.CostEstimate(
            flops=3 * x.size, bytes_accessed=2 * x.size * x.dtype.itemsize + 8 * cos.size, transcendentals=0
        ),
        name='rotate',
    )(x, cos, sin)


def _backward(width: int, residuals: tuple, cotangent: jax.Array) -> tuple:
    cos, sin = residuals  # the transpose of a rotation is its inverse
    return rotate(width, cotangent, cos, -sin), None, None


rotate.defvjp(lambda width, x, cos, sin: (rotate(width, x, cos, sin), (cos, sin)), _backward)


def register_columns(cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Repeats cosines and sines [..., K / 2] to the width of a register, and negates the sines of first halves."""
    repeats = LANES // (2 * cos.shape[-1])
    return jnp.tile(cos, 2 * repeats), jnp.tile(jnp.concatenate([-sin, sin], axis=-1), repeats)


def _kernel(width: int, x, cos, sin, output) -> None:
    half = width // 2
    for begin in range(0, x.shape[1], LANES):
        columns = slice(begin, begin + LANES)
        y = x[:, columns].astype(jnp.float32)
        in_first_half = jax.lax.broadcasted_iota(jnp.int32, y.shape, 1) % width < half
        other = jnp.where(in_first_half, pltpu.roll(y, LANES - half, 1), pltpu.roll(y, half, 1))
        output[:, columns] = (y * cos[...] + other * sin[...]).astype(output.dtype)
