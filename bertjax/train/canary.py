"""One gradient of a tiny layer against stored digits: a compiler that computes wrongly is noticed before a run starts.

XLA has had releases that compiled a gradient into another function, without a word: openxla/xla and jax keep reports of
them. A model that trains on such a gradient only looks as if it did not learn.
"""

import functools
import math

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from bertjax.errors import UserError
from bertjax.model.attention import dot_product
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.layers import gelu
from bertjax.parallel.devices import claim_devices

ROWS, LENGTH, WIDTH, HEADS = 3, 17, 48, 4  # nothing that a vector unit divides evenly
SHAPES = {
    'x': (ROWS, LENGTH, WIDTH),
    'query': (WIDTH, HEADS, WIDTH // HEADS),
    'key': (WIDTH, HEADS, WIDTH // HEADS),
    'value': (WIDTH, HEADS, WIDTH // HEADS),
    'output': (HEADS, WIDTH // HEADS, WIDTH),
    'scale': (WIDTH,),
    'up': (WIDTH, 2 * WIDTH),
    'down': (2 * WIDTH, WIDTH),
}
# Of the gradient by each of them, the norm and the product with `numbers`: by JAX in float64, which
# tests/train/test_canary.py computes again by PyTorch.
DIGITS = {
    'x': (36.06642407, -1.360318039),
    'query': (7.415997206, 0.1046290104),
    'key': (0.2209229188, -0.001067887918),
    'value': (122.8115834, 4.509944702),
    'output': (10.8826319, 0.6481347186),
    'scale': (6.744725246, 0.4426130723),
    'up': (14.50791456, -0.1659246228),
    'down': (2.807577474, -0.0008124993987),
}
TOLERANCE = 1e-3  # of a norm: float32 is within 1e-6 on a CPU


def training_devices() -> list[jax.Device]:
    """`claim_devices`, when they are to train.

    Raises:
      UserError: see `check_gradients`.
    """
    devices = claim_devices()
    check_gradients()
    return devices


@functools.cache
def check_gradients() -> None:
    """Computes the gradient on the first device, once a process.

    Raises:
      UserError: it is wrong.
    """
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    # It compiles in less time than what is usually kept, and every start needs it.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    try:
        with jax.default_matmul_precision('highest'):
            found = digits(jax.device_get(jax.jit(jax.grad(loss))(arguments(np.float32))))
    finally:
        jax.config.update('jax_persistent_cache_min_compile_time_secs', before)
    wrong = [name for name, right in DIGITS.items() if not _near(found[name], right)]
    if wrong:
        backend = jax.devices()[0].device_kind
        name = wrong[0]
        raise UserError(
            f'jaxlib {jaxlib.__version__} on {backend}',
            f'a wrong gradient of a small layer, by {", ".join(wrong)} (norm {found[name][0]:.6g})',
            f'{DIGITS[name][0]:.6g}, as stored',
            'this XLA computes wrongly and must not train: install another version of jax, or take other XLA_FLAGS',
        )


def arguments(dtype: type) -> dict[str, np.ndarray]:
    """What the layer is computed of: SHAPES, filled with `numbers`."""
    return {name: numbers(shape, i).astype(dtype) for i, (name, shape) in enumerate(SHAPES.items())}


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Sines, float64, divided by the root of the first dimension: as large as the weights of a projection should be."""
    count = math.prod(shape)
    return np.sin(np.arange(1, count + 1, dtype=np.float64) * (1.0 + 0.1 * seed)).reshape(shape) * shape[0] ** -0.5


def digits(gradient: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """{name: (norm of the gradient by it, its product with fixed numbers)}."""
    wide = {name: np.asarray(g, np.float64) for name, g in gradient.items()}
    return {name: (float(np.linalg.norm(g)), float(np.sum(g * numbers(g.shape, 9)))) for name, g in wide.items()}


def loss(of: dict[str, jax.Array]) -> jax.Array:
    """A loss of attention, LayerNorm and an MLP with gelu; keys beyond each row's length are hidden."""
    x = 4 * of['x']  # [B, S, D]
    query, key, value = (jnp.einsum('BSD,DHK->BSHK', x, of[name]) for name in ('query', 'key', 'value'))
    lengths = jnp.asarray([LENGTH, LENGTH - 5, 2])
    mask = AttentionMask((jnp.arange(LENGTH) < lengths[:, None]).astype(jnp.int32))
    mixed = dot_product.attend(query, key, value, mask, dropout_rate=0.0, dropout=None)  # [B, S, H, K]
    x = x + jnp.einsum('BSHK,HKD->BSD', mixed, of['output'])
    centred = x - x.mean(-1, keepdims=True)
    x = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * (1 + of['scale'])
    y = x + gelu(x @ of['up']) @ of['down']  # [B, S, D]
    return jnp.sum(jax.nn.logsumexp(y, axis=-1) - y[..., 0])


def _near(found: tuple[float, float], right: tuple[float, float]) -> bool:
    bound = TOLERANCE * right[0]
    # What is not a number is not near.
    return all(abs(a - b) <= bound for a, b in zip(found, right, strict=True))
