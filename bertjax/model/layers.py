"""The primitives: projection, LayerNorm, embedding table, activations."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertjax.model.config import BertConfig
from bertjax.parallel.partition import platform, with_axes

# Added to, or in place of, a logit that must not count: small enough that the softmax of any other wins, finite so that
# a row in which no logit counts gives no NaN.
NEGATIVE = -1e9


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x Φ(x), Φ the distribution function of the standard normal (arXiv 1606.08415), any shape.

    With erf as PyTorch has it, not `jax.nn.gelu`'s erfc, which costs more than twice as much on CPU. The gradient is
    computed from x alone, where autodiff keeps four arrays of the size of the MLP until the backward pass.
    """
    return x * _normal_cdf(x)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _gelu_gradient(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    density = jnp.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return (cotangent * (_normal_cdf(x) + x * density),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_gradient)

ACTIVATION_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    'gelu': gelu,
    'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
    'relu': jax.nn.relu,
}
POOLER_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {'tanh': jnp.tanh, 'relu': jax.nn.relu}


def weight_init(config: BertConfig) -> nn.initializers.Initializer:
    """Normal of `init_stddev`, cut at two of them and not rescaled (google-research/bert, modeling.py)."""
    # truncated_normal divides by the standard deviation that is left after cutting; TensorFlow's does not, and the
    # models of that code start with 0.88 of the nominal spread. The difference is kept as the original has it.
    return lambda key, shape, dtype: config.init_stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


SAVED_RESIDUAL = 'dear'


def save_residual(x: jax.Array) -> jax.Array:
    """`x`, which took a matrix product to compute, and which a backward pass that computes all else again has kept."""
    return checkpoint_name(x, SAVED_RESIDUAL)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def add_bias(x: jax.Array, bias: jax.Array, by_product: bool) -> jax.Array:
    """x + bias, of x [..., D] and bias [D] of any dtype, in that of x; the bias' gradient is summed in float32.

    `by_product`: as a product with ones, where the gradient of x comes from a kernel on TPU. Any other operation that
    makes it has its sum with it; after a kernel the sum is a pass over memory, and the product a small part of it. So
    it is on a CPU of very long rows.
    """
    return x + bias.astype(x.dtype)


def _add_bias_gradient(by_product: bool, bias: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    if by_product:
        ones = jnp.ones((8, len(rows)), rows.dtype)  # of a single row the compiler makes a sum again
        columns = jnp.matmul(ones, rows, precision='highest', preferred_element_type=jnp.float32)[0]
    else:
        columns = rows.astype(jnp.float32).sum(0)
    return cotangent, columns.astype(bias.dtype)


add_bias.defvjp(lambda x, bias, by_product: (add_bias(x, bias, by_product), bias), _add_bias_gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, kernel: jax.Array, save_x: bool = False) -> jax.Array:
    """x [..., M] @ kernel [M, N] of one dtype -> [..., N], in it, with the kernel's gradient as a product of x.

    Autodiff's is the transpose of a product, for which XLA:CPU copies the cotangent into another layout and then takes
    a kernel that is a third as fast.

    `save_x`: of what it keeps `jax.checkpoint` makes a rounded copy for those who go on with it. The compiler fuses
    that into the operation that makes x, but into no kernel; here only the backward pass reads what is kept.
    """
    return _product_forward(x, kernel, save_x)[0]


def dot(x: jax.Array, y: jax.Array, of_x: tuple[int, ...], of_y: tuple[int, ...]) -> jax.Array:
    """The product of arrays of one dtype, in it, over these dimensions of each."""
    # XLA:CPU has a fast kernel for bfloat16 where the result is float32, and makes all of it float32 otherwise.
    wide = jnp.float32 if platform() == 'cpu' else None
    return jax.lax.dot_general(x, y, ((of_x, of_y), ((), ())), preferred_element_type=wide).astype(x.dtype)


def dot_over_rows(x: jax.Array, y: jax.Array) -> jax.Array:
    """x [..., M], y [..., N] of one dtype -> the sum over all rows of their outer products, in it, [M, N]."""
    if platform() == 'cpu' and x.dtype == jnp.float32:
        # Of two dimensions of rows XLA makes one, and x's transpose for it; which pays for bfloat16, but not here.
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    rows = tuple(range(x.ndim - 1))
    return dot(x, y, rows, rows)


def _product_forward(x: jax.Array, kernel: jax.Array, save_x: bool) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    # Not by `product`, inside which a policy of `jax.checkpoint` would not see what it may keep.
    return dot(x, kernel, (x.ndim - 1,), (0,)), (save_residual(x) if save_x else x, kernel)


def _product_gradient(
    save_x: bool, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    del save_x
    x, kernel = saved
    return dot(cotangent, kernel, (x.ndim - 1,), (1,)), dot_over_rows(x, cotangent)


product.defvjp(_product_forward, _product_gradient)


class Projection(nn.Module):
    """Linear map from the last `len(in_axes)` dimensions to `features`, which the result has as one; bias included.

    As one, for the compiler may give a dimension that fills no register, such as a head's width, the place of another,
    and then copies the array to where it is needed otherwise.

    `nn.DenseGeneral` draws its kernel as a matrix and reshapes it, so that axis names land on the wrong dimensions
    (google/flax#3676, #3892); here the kernel is created in its final shape, with one name a dimension.

    Attributes:
      config: of the model.
      features: dimensions of the result.
      in_axes, out_axes, bias_axes: names of the dimensions of kernel and bias.
      into_kernel: a kernel that was written by hand may take the result: see `add_bias`.
      from_kernel: ... may have made the input, which is `save_residual`: see `product`.
    """

    config: BertConfig
    features: tuple[int, ...]
    in_axes: tuple[str, ...]
    out_axes: tuple[str, ...]
    bias_axes: tuple[str, ...]
    into_kernel: bool = False
    from_kernel: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype, stored = jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        n = len(self.in_axes)
        shape = x.shape[-n:] + self.features
        kernel = self.param('kernel', with_axes(weight_init(self.config), *self.in_axes, *self.out_axes), shape, stored)
        bias = self.param('bias', with_axes(nn.initializers.zeros_init(), *self.bias_axes), self.features, stored)
        x = x.astype(dtype).reshape(*x.shape[:-n], -1)
        kernel = kernel.astype(dtype).reshape(x.shape[-1], -1)
        plain = platform() != 'cpu' and not self.from_kernel  # TPU's compiler has its own order of what to transpose
        y = x @ kernel if plain else product(x, kernel, self.from_kernel)
        return add_bias(y, bias.reshape(-1), self.into_kernel and platform() == 'tpu')  # [..., product of features]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) · scale + bias over the last dimension, computed in float32, in x's dtype.

    The gradient needs x, mean and standard deviation alone, where autodiff keeps arrays of the size of x in float32.

    Args:
      x: [..., D].
      scale, bias: [D].
      epsilon: added to the variance.
    """
    return _layer_norm(x, scale, bias, epsilon)[0]


def _layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    if x.dtype == jnp.float32:
        variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    else:
        # One pass costs digits where the mean is far from 0: no more of them than x lost when it was rounded.
        variance = jnp.maximum(jnp.square(wide).mean(-1, keepdims=True) - jnp.square(mean), 0.0)
    mean, inverse = save_residual(mean), save_residual(jax.lax.rsqrt(variance + epsilon))
    y = (wide - mean) * inverse * scale.astype(jnp.float32) + bias.astype(jnp.float32)
    return y.astype(x.dtype), (x, mean, inverse, scale, bias)


def _layer_norm_gradient(
    epsilon: float, saved: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del epsilon
    x, mean, inverse, scale, bias = saved
    cotangent = cotangent.astype(jnp.float32)
    normal = (x.astype(jnp.float32) - mean) * inverse
    scaled = cotangent * scale.astype(jnp.float32)
    along = (scaled * normal).mean(-1, keepdims=True)
    gradient = inverse * (scaled - scaled.mean(-1, keepdims=True) - normal * along)
    d_scale, d_bias = (y.reshape(-1, y.shape[-1]).sum(0) for y in (cotangent * normal, cotangent))
    return gradient.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(bias.dtype)


layer_norm.defvjp(_layer_norm, _layer_norm_gradient)


class LayerNorm(nn.Module):
    """Normalises the last dimension, see `layer_norm`."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        stored = jnp.dtype(self.config.param_dtype)
        scale = self.param('scale', with_axes(nn.initializers.ones_init(), 'norm'), (x.shape[-1],), stored)
        bias = self.param('bias', with_axes(nn.initializers.zeros_init(), 'norm'), (x.shape[-1],), stored)
        return layer_norm(x, scale, bias, self.config.layer_norm_eps).astype(jnp.dtype(self.config.dtype))


class Embedding(nn.Module):
    """A table `rows` x D; rows from `used` on are padding and start as zeros, so that they add to no norm."""

    config: BertConfig
    rows: int
    used: int
    axis: str

    def setup(self):
        draw = weight_init(self.config)

        def init(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
            return jnp.where(jnp.arange(shape[0])[:, None] < self.used, draw(key, shape, dtype), 0)

        shape, stored = (self.rows, self.config.width), jnp.dtype(self.config.param_dtype)
        self.embedding = self.param('embedding', with_axes(init, self.axis, 'embed'), shape, stored)

    def __call__(self) -> jax.Array:
        """The table, in the dtype of computation."""
        return self.embedding.astype(jnp.dtype(self.config.dtype))  # [rows, D]
