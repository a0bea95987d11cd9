"""Rotary position embedding (RoPE, arXiv 2104.09864): a rotation of queries and keys that depends on the position."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Rotary(struct.PyTreeNode):
    """The rotation of each position.

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
        """Looks up `of_positions` for positions below `length` in a constant table.

        XLA:CPU would compute the cosines again for each head of each block, which takes seven times as long as this.
        """
        with jax.ensure_compile_time_eval():
            table = cls.of_positions(jnp.arange(length), head_dim, theta)
        return jax.tree.map(lambda x: jnp.take(np.asarray(x), positions, axis=0, mode='clip'), table)

    def rotate(self, x: jax.Array) -> jax.Array:
        """Rotates x [B, S, H, K] in float32 and returns it in its dtype.

        Value i of the first half of a head is paired with value i of the second half, as in transformers
        (`rotate_half`).
        """
        cos, sin = self.cos[..., None, :], self.sin[..., None, :]  # [1 or B, S, 1, K / 2]
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
