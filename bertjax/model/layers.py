"""The basic layers: projection, norms, embedding table, activations."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertjax.model.config import BertConfig
from bertjax.parallel.partition import platform, with_axes

# The value that is added to a masked logit, or replaces it. With -inf, the softmax of only masked logits would be NaN.
NEGATIVE = -1e9


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """Computes x Φ(x) in float32, where Φ is the CDF of the standard normal distribution (arXiv 1606.08415).

    The result has the dtype of x. The erfc in `jax.nn.gelu` costs more than twice as much on CPU as the erf here. The
    backward pass needs only x, whereas autodiff would save three arrays with the shape of x.
    """
    wide = x.astype(jnp.float32)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _gelu_gradient(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2.0 * math.pi)
    return ((cotangent * (_normal_cdf(wide) + wide * density)).astype(x.dtype),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_gradient)

# The activation of each `config.mlp`. A gated MLP applies it to the gate (config.GATED_MLPS).
ACTIVATION_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    'gelu': gelu,
    'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
    'relu': jax.nn.relu,
    'relu2': lambda x: jnp.square(jax.nn.relu(x)),
    'geglu': gelu,
    'swiglu': jax.nn.silu,
}


def weight_init(config: BertConfig, into_residual: bool = False) -> nn.initializers.Initializer:
    """Returns a normal initializer, truncated at two standard deviations (google-research/bert, modeling.py).

    As in TensorFlow, the truncation reduces the standard deviation to 0.88 · `init_stddev`. `into_residual` is for
    projections whose results are added to the residual stream; for these, `config.init` scales the standard deviation.
    """
    stddev = config.init_stddev
    if into_residual:
        stddev *= {'bert': 1.0, 'megatron': (2 * config.num_layers) ** -0.5, 'zero_output': 0.0}[config.init]
    return lambda key, shape, dtype: stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


SAVED_RESIDUAL = 'saved_residual'


def save_residual(x: jax.Array) -> jax.Array:
    """Marks x so that remat 'elementwise' saves it for the backward pass."""
    return checkpoint_name(x, SAVED_RESIDUAL)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def add_bias(x: jax.Array, bias: jax.Array, sum_by_matmul: bool) -> jax.Array:
    """Adds bias [D] to x [..., D], in the dtype of x. The gradient of the bias is summed in float32.

    With `sum_by_matmul`, a matmul with ones sums this gradient. On TPU, this is faster if a Pallas kernel computes the
    gradient of x, because the compiler cannot fuse a sum into the kernel.
    """
    return x + bias.astype(x.dtype)


def _add_bias_gradient(sum_by_matmul: bool, bias: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    if sum_by_matmul:
        columns = sum_over_rows(cotangent)
    else:
        columns = cotangent.astype(jnp.float32).reshape(-1, cotangent.shape[-1]).sum(0)
    return cotangent, columns.astype(bias.dtype)


def sum_over_rows(x: jax.Array) -> jax.Array:
    """Sums x [..., D] -> float32 [D] by a matmul with ones."""
    rows = x.reshape(-1, x.shape[-1])
    ones = jnp.ones((8, len(rows)), rows.dtype)  # the compiler would replace a matmul with one row by a sum
    return jnp.matmul(ones, rows, precision='highest', preferred_element_type=jnp.float32)[0]


add_bias.defvjp(lambda x, bias, sum_by_matmul: (add_bias(x, bias, sum_by_matmul), bias), _add_bias_gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, kernel: jax.Array, save_x: bool = False) -> jax.Array:
    """Computes x [..., M] @ kernel [M, N] -> [..., N] in their common dtype.

    The backward pass computes the gradient of the kernel as xᵀ @ cotangent. Autodiff would compute the transpose of
    this gradient, for which XLA:CPU copies the cotangent into another layout and takes three times as long.

    With `save_x`, `save_residual` marks the x that the backward pass uses. A mark before the product would make
    `jax.checkpoint` copy x, and the compiler cannot fuse this copy into a Pallas kernel that computes x.
    """
    return _product_forward(x, kernel, save_x)[0]


def dot(x: jax.Array, y: jax.Array, x_dims: tuple[int, ...], y_dims: tuple[int, ...]) -> jax.Array:
    """Contracts dimensions `x_dims` of x with dimensions `y_dims` of y, in their common dtype."""
    # XLA:CPU has a fast bfloat16 matmul only for float32 results. For other results, it converts the inputs to float32.
    wide = jnp.float32 if platform() == 'cpu' else None
    return jax.lax.dot_general(x, y, ((x_dims, y_dims), ((), ())), preferred_element_type=wide).astype(x.dtype)


def dot_over_rows(x: jax.Array, y: jax.Array) -> jax.Array:
    """Sums the outer product of each row of x [..., M] with the same row of y [..., N] -> [M, N], in their dtype."""
    if platform() == 'cpu':
        # To contract several dimensions, XLA:CPU transposes x, which pays off only for bfloat16.
        if x.dtype == jnp.float32:
            x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        elif x.shape[-1] > y.shape[-1]:  # transposing the smaller y and the result takes less time than transposing x
            return jax.lax.optimization_barrier(dot_over_rows(y, x)).T
    rows = tuple(range(x.ndim - 1))
    return dot(x, y, rows, rows)


def _product_forward(x: jax.Array, kernel: jax.Array, save_x: bool) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    # A `jax.checkpoint` policy sees the mark only if no other `custom_vjp` function calls `product`.
    return dot(x, kernel, (x.ndim - 1,), (0,)), (save_residual(x) if save_x else x, kernel)


def _product_gradient(
    save_x: bool, residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    return dot(cotangent, kernel, (x.ndim - 1,), (1,)), dot_over_rows(x, cotangent)


product.defvjp(_product_forward, _product_gradient)


class Projection(nn.Module):
    """A linear map from the last `len(in_axes)` dimensions to one dimension of size prod(`features`).

    The output dimensions are merged, because the last one, such as the width of a head, may not fill a vector register,
    and the compiler may then copy the output into another layout and back.

    The kernel is created in its final shape, with one axis name per dimension. `nn.DenseGeneral` creates a matrix and
    reshapes it, so the names would belong to the wrong dimensions (google/flax#3676, #3892).

    Attributes:
      features: The output dimensions of the kernel.
      in_axes, out_axes, bias_axes: Logical axis names of the kernel's input and output dimensions, and of the bias.
      feeds_custom_kernel: Whether the result may be the input of a Pallas kernel; see `sum_by_matmul` of `add_bias`.
      from_custom_kernel: Whether the input may be the result of a Pallas kernel; see `save_x` of `product`.
      into_residual: Whether the result is added to the residual stream; see `weight_init`.
      use_bias: Whether to add a bias; None for `config.projection_bias`.
    """

    config: BertConfig
    features: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    out_axes: tuple[str, ...]
    bias_axes: tuple[str, ...]
    feeds_custom_kernel: bool = False
    from_custom_kernel: bool = False
    into_residual: bool = False
    use_bias: bool | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype, param_dtype = jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        n = len(self.in_axes)
        shape = x.shape[-n:] + self.features
        kernel_init = with_axes(weight_init(self.config, self.into_residual), *self.in_axes, *self.out_axes)
        kernel = self.param('kernel', kernel_init, shape, param_dtype)
        use_bias = self.config.projection_bias if self.use_bias is None else self.use_bias
        bias_init = with_axes(nn.initializers.zeros_init(), *self.bias_axes)
        bias = self.param('bias', bias_init, self.features, param_dtype) if use_bias else None
        x = x.astype(dtype).reshape(*x.shape[:-n], -1)
        kernel = kernel.astype(dtype).reshape(x.shape[-1], -1)
        plain = platform() != 'cpu' and not self.from_custom_kernel
        # `product` avoids a transpose that is slow only on CPU.
        y = x @ kernel if plain else product(x, kernel, self.from_custom_kernel)
        # [..., product of features]
        return y if bias is None else add_bias(y, bias.reshape(-1), self.feeds_custom_kernel and platform() == 'tpu')


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Computes (x - mean) / sqrt(variance + epsilon) · scale + bias for x [..., D], scale [D], and bias [D] or None.

    The computation is in float32, and the result has the dtype of x. Autodiff would save float32 arrays with the shape
    of x, but this backward pass needs only x and two numbers per row.
    """
    return _layer_norm(x, scale, bias, epsilon)[0]


def _layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    if x.dtype == jnp.float32:
        variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    else:
        # E[x²] - E[x]² needs a single pass over x. If the mean is far from 0, the error is large, but no larger
        # than that of rounding x to bfloat16.
        variance = jnp.maximum(jnp.square(wide).mean(-1, keepdims=True) - jnp.square(mean), 0.0)
    mean, inverse = save_residual(mean), save_residual(jax.lax.rsqrt(variance + epsilon))
    y = (wide - mean) * inverse * scale.astype(jnp.float32)
    y = y if bias is None else y + bias.astype(jnp.float32)
    return y.astype(x.dtype), (x, mean, inverse, scale, bias)


def _layer_norm_gradient(
    epsilon: float, residuals: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, mean, inverse, scale, bias = residuals
    cotangent = cotangent.astype(jnp.float32)
    normal = (x.astype(jnp.float32) - mean) * inverse
    scaled = cotangent * scale.astype(jnp.float32)
    projection = (scaled * normal).mean(-1, keepdims=True)
    gradient = inverse * (scaled - scaled.mean(-1, keepdims=True) - normal * projection)
    d_scale, d_bias = (y.reshape(-1, y.shape[-1]).sum(0) for y in (cotangent * normal, cotangent))
    return gradient.astype(x.dtype), d_scale.astype(scale.dtype), None if bias is None else d_bias.astype(bias.dtype)


layer_norm.defvjp(_layer_norm, _layer_norm_gradient)


def rms_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Computes x / sqrt(mean of x² + epsilon) · scale + bias (arXiv 1910.07467), with the dtypes of `layer_norm`."""
    wide = x.astype(jnp.float32)
    inverse = save_residual(jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon))
    y = wide * inverse * scale.astype(jnp.float32)
    return (y if bias is None else y + bias.astype(jnp.float32)).astype(x.dtype)


_NORM_FUNCTIONS = {'layernorm': layer_norm, 'rmsnorm': rms_norm}


class Norm(nn.Module):
    """Normalization by `config.norm` over the last dimension, with a scale and, if `config.norm_bias`, a bias."""

    config: BertConfig
    axis: str = 'norm'  # the logical name of the last dimension

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c, shape, param_dtype = self.config, (x.shape[-1],), jnp.dtype(self.config.param_dtype)
        scale = self.param('scale', with_axes(nn.initializers.ones_init(), self.axis), shape, param_dtype)
        bias_init = with_axes(nn.initializers.zeros_init(), self.axis)
        bias = self.param('bias', bias_init, shape, param_dtype) if c.norm_bias else None
        return _NORM_FUNCTIONS[c.norm](x, scale, bias, c.layer_norm_eps).astype(jnp.dtype(c.dtype))


class Embedding(nn.Module):
    """An embedding table [rows, D]. Rows from `used` on are padding, initially 0 to add nothing to the table's norm."""

    config: BertConfig
    rows: int
    used: int
    axis: str

    def setup(self):
        init_rows = weight_init(self.config)

        def init(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
            return jnp.where(jnp.arange(shape[0])[:, None] < self.used, init_rows(key, shape, dtype), 0)

        shape, param_dtype = (self.rows, self.config.width), jnp.dtype(self.config.param_dtype)
        self.embedding = self.param('embedding', with_axes(init, self.axis, 'embed'), shape, param_dtype)

    def __call__(self) -> jax.Array:
        """Returns the table in `config.dtype`."""
        return self.embedding.astype(jnp.dtype(self.config.dtype))  # [rows, D]
