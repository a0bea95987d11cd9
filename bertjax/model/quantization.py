"""Quantizes vectors to a byte or a bit per dimension, and computes the cosines of vectors."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import UserError

# {precision: dtype of the vectors}. The dtype of a vector identifies its precision.
PRECISIONS = {'float32': np.float32, 'int8': np.int8, 'binary': np.uint8}


def value_ranges(x: np.ndarray) -> np.ndarray:
    """Returns float32 [2, D], the smallest and the largest value of each dimension of x [N, D]. NaN is ignored."""
    if not len(x):
        return np.zeros((2, x.shape[1]), np.float32)
    return np.float32([np.fmin.reduce(x), np.fmax.reduce(x)])


def quantize(x: np.ndarray, precision: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Converts vectors float32 [N, D] to float32 [N, D], int8 [N, D] or uint8 [N, D / 8].

    Rows of NaN stand for absent texts; 'int8' and 'binary' convert them to zeros. The results equal those of
    `quantize_embeddings` in sentence-transformers 6.2, where 'binary' is called 'ubinary'.

    Args:
      precision: 'float32' keeps the vectors. 'int8' divides the range of each dimension into 255 equal steps; values
        outside the range become -128 or 127. 'binary' stores a bit per value, 1 if the value is above 0.
      ranges: float32 [2, D], the smallest and the largest value of each dimension, for 'int8'.

    Raises:
      UserError: D is not a multiple of 8, for 'binary'.
    """
    if precision == 'float32':
        return x
    if precision == 'binary':
        if x.shape[-1] % 8:
            fix = f'set truncate_dim={x.shape[-1] // 8 * 8}' if x.shape[-1] > 8 else 'choose another precision'
            raise UserError('precision', f"'binary' for vectors of width {x.shape[-1]}", 'a multiple of 8', fix)
        return np.packbits(x > 0, axis=-1)
    start, end = ranges.astype(np.float32)
    step = (end - start) / np.float32(255)
    levels = np.clip(np.floor((x - start) / np.where(step == 0, np.float32(1), step)), 0, 255) - 128
    return np.where(np.isnan(levels), 0, levels).astype(np.int8)


def dequantize(x: jax.Array, ranges: jax.Array) -> jax.Array:
    """Converts int8 vectors [N, D] to float32, each value to the middle of its step. Zero vectors stay 0."""
    values = ranges[0] + (x.astype(jnp.float32) + 128.5) * (ranges[1] - ranges[0]) / 255
    return jnp.where((x != 0).any(-1, keepdims=True), values, 0.0)


def cosine_similarity(x: jax.Array, y: jax.Array, ranges: jax.Array | None = None) -> jax.Array:
    """Computes the cosines of vectors, float32 [N, M].

    The cosines of a zero vector, which stands for an absent text, are 0. Bits have no zero vector.

    Args:
      x, y: Vectors [N, D] and [M, D] of a floating dtype or int8; or bits, uint8 [N, D / 8] and [M, D / 8]. A bit of 1
        stands for 1, a bit of 0 for -1.
      ranges: float32 [2, D], the ranges with which int8 vectors were quantized. The int8 values then count as the
        middle of their steps, and the other argument may have a floating dtype. None for the cosines of the integers.
    """
    if x.dtype == jnp.uint8:
        x, y = (2.0 * jnp.unpackbits(side, axis=-1).astype(jnp.float32) - 1.0 for side in (x, y))
        products = jnp.einsum('nd,md->nm', x, y, precision='highest')
        return products / x.shape[-1]  # exact: equal distances have equal cosines

    def normalized(vectors: jax.Array) -> jax.Array:
        is_quantized = ranges is not None and vectors.dtype == jnp.int8
        values = dequantize(vectors, ranges) if is_quantized else vectors.astype(jnp.float32)
        return values / jnp.maximum(jnp.linalg.norm(values, axis=-1, keepdims=True), 1e-12)

    return jnp.einsum('nd,md->nm', normalized(x), normalized(y), precision='highest')
