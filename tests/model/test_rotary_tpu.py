"""Tests the rotation of queries and keys by the TPU kernel, interpreted by JAX, against the plain form."""

import jax
import numpy as np
import pytest
from attention_cases import interpreted

from bertjax.model.rotary import Rotary

__all__ = ['interpreted']


@pytest.mark.parametrize('width', [32, 64, 128])
def test_values_and_gradients_equal_the_plain_form(interpreted, width):
    rng = np.random.default_rng(0)
    x, cotangent = rng.standard_normal((2, 2, 256, 128 * 2 // width, width)).astype(np.float32)
    rotary = Rotary.of_positions(rng.integers(0, 500, (2, 256)), width, 10_000.0)
    actual, pull = jax.vjp(rotary._rotate_by_kernel, x)
    expected, expected_pull = jax.vjp(rotary.rotate, x)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    np.testing.assert_allclose(pull(cotangent)[0], expected_pull(cotangent)[0], atol=1e-6)
