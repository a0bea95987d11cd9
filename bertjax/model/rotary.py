"""Rotary position embedding (RoPE, arXiv 2104.09864): rotates queries and keys by angles proportional to positions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from bertjax.parallel.partition import over_mesh, platform, shard_count

_BLOCK = 128  # the TPU kernel's positions per program, and columns per register


class Rotary(struct.PyTreeNode):
    """The rotation of each position, for heads of width K.

    Attributes:
      cos, sin: float32 [1 or B, S, K / 2], cosine and sine of position · theta^(-2 i / K) for i < K / 2.
    """

    cos: jax.Array
    sin: jax.Array

    @classmethod
    def of_positions(cls, positions: jax.Array, head_dim: int, theta: float) -> 'Rotary':
        """Computes the rotations of int positions [1 or B, S] for heads of an even width K and the base `theta`."""
        frequencies = 1.0 / theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)  # [K / 2]
        angles = positions[..., None].astype(jnp.float32) * frequencies
        return cls(jnp.cos(angles), jnp.sin(angles))

    @classmethod
    def from_table(cls, positions: jax.Array, head_dim: int, theta: float, length: int) -> 'Rotary':
        """Computes the result of `of_positions`, up to rounding, by a lookup in a constant table.

        All positions must be below `length`. Without the table, XLA:CPU would compute the cosines again for each head
        of each block, which takes seven times as long.
        """
        frequencies = np.float32(1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim))  # [K / 2]
        angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
        return cls(*(jnp.take(table, positions, axis=0, mode='clip') for table in (np.cos(angles), np.sin(angles))))

    def rotate(self, x: jax.Array) -> jax.Array:
        """Rotates x [B, S, H, K] in float32. The result has the dtype of x.

        Value i of the first half of a head is paired with value i of the second half (transformers' `rotate_half`).
        """
        if platform() == 'tpu' and self._fits_kernel(x):
            return self._rotate_by_kernel(x)
        return _rotate(x, self.cos, self.sin)

    def _fits_kernel(self, x: jax.Array) -> bool:
        B, S, H, K = x.shape
        heads, rest = divmod(H, shard_count('act_heads'))
        return not (S % _BLOCK or _BLOCK % K or heads * K % _BLOCK or rest or B % shard_count('act_batch'))

    def _rotate_by_kernel(self, x: jax.Array) -> jax.Array:
        from bertjax.model.rotary_tpu import register_columns, rotate  # importing Pallas takes a while

        (B, S, H, K), rows = x.shape, ('act_batch', 'act_length', None)
        tables = (jnp.broadcast_to(y, (B, S, _BLOCK)) for y in register_columns(self.cos, self.sin))
        columns = ('act_batch', 'act_length', 'act_heads')
        kernel = over_mesh(functools.partial(rotate, K), (columns, rows, rows), columns)
        return kernel(x.reshape(B, S, H * K), *tables).reshape(x.shape)


@jax.custom_vjp
def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates x [B, S, H, K] by cos and sin [1 or B, S, K / 2]; see `Rotary.rotate`."""
    # One formula computes all values from x and from x with the halves of each head swapped. XLA:CPU is slow with two
    # formulas and a concatenation. Without the barrier, XLA would compute the tables again for each head.
    tables = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    cos, sin = jax.lax.optimization_barrier(tuple(table[..., None, :] for table in tables))
    wide = x.astype(jnp.float32)
    return (wide * cos + jnp.roll(wide, x.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)


def _rotate_back(tables: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None, None]:
    cos, sin = tables
    return _rotate(cotangent, cos, -sin), None, None  # the inverse of a rotation is its transpose


_rotate.defvjp(lambda x, cos, sin: (_rotate(x, cos, sin), (cos, sin)), _rotate_back)
