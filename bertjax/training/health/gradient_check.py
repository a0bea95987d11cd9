"""Compares the gradient of a tiny layer with stored numbers, to detect a faulty compiler before a run starts.

Some XLA releases compiled gradients wrongly, without an error (see the issues of openxla/xla and jax). The only symptom
is that the model does not learn.
"""

import functools
import math

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from bertjax.errors import UserError
from bertjax.model.attention.dot_product import DotProduct
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.layers import gelu
from bertjax.parallel.devices import claim_devices

ROWS, LENGTH, WIDTH, HEADS = 3, 17, 48, 4  # the odd ROWS and LENGTH leave remainders in vectorized loops
SHAPES = {
    'x': (ROWS, LENGTH, WIDTH),
    **dict.fromkeys(('query', 'key', 'value'), (WIDTH, HEADS, WIDTH // HEADS)),
    'output': (HEADS, WIDTH // HEADS, WIDTH),
    'scale': (WIDTH,),
    'up': (WIDTH, 2 * WIDTH),
    'down': (2 * WIDTH, WIDTH),
}
# {input: (norm, checksum)} of the right gradient, from `summarize_gradient`. JAX computed these numbers in float64, and
# tests/training/test_gradient_check.py verifies them with PyTorch.
EXPECTED = {
    'x': (36.06642407, -1.360318039),
    'query': (7.415997206, 0.1046290104),
    'key': (0.2209229188, -0.001067887918),
    'value': (122.8115834, 4.509944702),
    'output': (10.8826319, 0.6481347186),
    'scale': (6.744725246, 0.4426130723),
    'up': (14.50791456, -0.1659246228),
    'down': (2.807577474, -0.0008124993987),
}
TOLERANCE = 1e-3  # relative to the norm; float32 on a CPU is within 1e-6


def training_devices() -> list[jax.Device]:
    """Returns the devices of `claim_devices` after `check_gradients`. See both for errors."""
    devices = claim_devices()
    check_gradients()
    return devices


@functools.cache
def check_gradients() -> None:
    """Raises a UserError if the gradient on the first device is wrong. The check runs once per process."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    # Cache this program although it compiles quickly, because every start needs it.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    try:
        with jax.default_matmul_precision('highest'):
            computed = summarize_gradient(jax.device_get(jax.jit(jax.grad(loss))(arguments(np.float32))))
    finally:
        jax.config.update('jax_persistent_cache_min_compile_time_secs', before)
    # The comparison of a NaN is false, so a NaN counts as wrong.
    is_near = lambda x, y: np.all(np.abs(np.subtract(x, y)) <= TOLERANCE * y[0])  # noqa: E731
    wrong = [name for name, right in EXPECTED.items() if not is_near(computed[name], right)]
    if wrong:
        name = wrong[0]
        found, expected = ('norm {:.6g} and checksum {:.6g}'.format(*x[name]) for x in (computed, EXPECTED))
        raise UserError(
            f'jaxlib {jaxlib.__version__} on {jax.devices()[0].device_kind}',
            f'a wrong gradient of a small layer with respect to {", ".join(wrong)} (for {name}, {found})',
            f'the stored {expected} for {name}',
            'install another version of jax, or change XLA_FLAGS: a model cannot learn with wrong gradients',
        )


def arguments(dtype: type) -> dict[str, np.ndarray]:
    """Returns the inputs of the layer: arrays of SHAPES, filled by `numbers`."""
    return {name: numbers(shape, i).astype(dtype) for i, (name, shape) in enumerate(SHAPES.items())}


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Returns float64 sines in the usual scale of projection weights, 1 / sqrt(first dimension)."""
    count = math.prod(shape)
    return np.sin(np.arange(1, count + 1, dtype=np.float64) * (1.0 + 0.1 * seed)).reshape(shape) * shape[0] ** -0.5


def summarize_gradient(gradient: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Returns {input: (norm, checksum)} of the gradients. The checksum is the dot product with fixed numbers."""
    wide = {name: np.asarray(g, np.float64) for name, g in gradient.items()}
    return {name: (float(np.linalg.norm(g)), float(np.sum(g * numbers(g.shape, 9)))) for name, g in wide.items()}


def loss(inputs: dict[str, jax.Array]) -> jax.Array:
    """Computes a loss through attention, LayerNorm and an MLP with gelu. The rows have different lengths."""
    x = 4 * inputs['x']  # [B, S, D]
    query, key, value = (jnp.einsum('BSD,DHK->BSHK', x, inputs[name]) for name in ('query', 'key', 'value'))
    lengths = jnp.asarray([LENGTH, LENGTH - 5, 2])
    mask = AttentionMask((jnp.arange(LENGTH) < lengths[:, None]).astype(jnp.int32))
    mixed = DotProduct().attend(query, key, value, mask, dropout_rate=0.0, dropout=None)  # [B, S, H, K]
    x = x + jnp.einsum('BSHK,HKD->BSD', mixed, inputs['output'])
    centered = x - x.mean(-1, keepdims=True)
    x = centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-6) * (1 + inputs['scale'])
    y = x + gelu(x @ inputs['up']) @ inputs['down']  # [B, S, D]
    return jnp.sum(jax.nn.logsumexp(y, axis=-1) - y[..., 0])
