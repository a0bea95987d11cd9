"""Tests the rotation of queries and keys, also by the TPU kernel, which JAX interprets, against complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import interpreted

from bertjax.model.rotary import Rotary

__all__ = ['interpreted']


@pytest.mark.parametrize(
    'form, width',
    [
        ('rotate', 64),
        ('_rotate_by_kernel', 32),
        *(pytest.param('rotate', width, marks=pytest.mark.slow) for width in (32, 128)),
        *(pytest.param('_rotate_by_kernel', width, marks=pytest.mark.slow) for width in (64, 128)),
    ],
)
def test_values_and_gradients_equal_a_product_of_complex_numbers(interpreted, form, width):
    rng = np.random.default_rng(0)
    x, cotangent = rng.standard_normal((2, 2, 256, 128 * 2 // width, width)).astype(np.float32)
    rotary = Rotary.of_positions(rng.integers(0, 500, (2, 256)), width, 10_000.0)

    def rotate(x):
        turned = jax.lax.complex(x[..., : width // 2], x[..., width // 2 :])
        turned = turned * jax.lax.complex(rotary.cos, rotary.sin)[:, :, None]
        return jnp.concatenate([turned.real, turned.imag], axis=-1)

    actual, pull = jax.vjp(getattr(rotary, form), x)
    expected, expected_pull = jax.vjp(rotate, x)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    np.testing.assert_allclose(pull(cotangent)[0], expected_pull(cotangent)[0], atol=1e-6)
