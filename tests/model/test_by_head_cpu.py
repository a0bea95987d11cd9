"""Tests `by_head_cpu` against float64 and against `dot_product`, on one device and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fused_tpu import CASES, RATE, Case, arrays_of, by_float64, dropout_of, mask_of

from bertjax.model.attention import by_head_cpu, dot_product
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context


def output_and_gradients(implementation, case, arrays, mask=None):
    """Returns [output, gradients of query, key, value]; the fourth array is the cotangent of the output."""
    mask, dropout = mask or mask_of(case), dropout_of()

    @jax.jit
    def compute(query, key, value, cotangent):
        attend = lambda *x: implementation.attend(*x, mask, dropout_rate=case.rate, dropout=dropout)  # noqa: E731
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(cotangent)

    return [np.asarray(x, np.float64) for x in compute(*arrays)]


@pytest.mark.parametrize('name', ['plain', 'packed', 'left to right', 'heads of 32'])
def test_output_and_gradients_equal_those_of_float64(name):
    case = CASES[name]
    arrays = arrays_of(case)
    results = output_and_gradients(by_head_cpu, case, arrays)
    for ours, expected in zip(results, by_float64(case, arrays), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6, rtol=1e-5)


def test_bfloat16_is_as_accurate_as_in_dot_product():
    case = CASES['dropout']
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in arrays_of(case)]
    by_head, plain = (output_and_gradients(module, case, arrays) for module in (by_head_cpu, dot_product))
    for ours, theirs, exact in zip(by_head, plain, by_float64(case, arrays), strict=True):
        our_error, their_error = (np.sqrt(np.square(x - exact).mean()) for x in (ours, theirs))
        assert our_error < 1.1 * their_error


def test_a_query_without_visible_keys_has_the_gradient_of_the_mean():
    """All keys of the first row are padding, so its weights are all 1 / S, as in `dot_product`."""
    case = Case(rate=RATE)
    mask = mask_of(case).replace(key_mask=mask_of(case).key_mask.at[0].set(0))
    results = (output_and_gradients(module, case, arrays_of(case), mask) for module in (by_head_cpu, dot_product))
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-6, rtol=1e-5)


def test_the_results_on_a_mesh_are_equal():
    case = CASES['packed']
    arrays = arrays_of(case)
    one_device = output_and_gradients(by_head_cpu, case, arrays)
    mesh = make_mesh({'data': 2, 'fsdp': 1, 'tensor': 2}, jax.devices()[:4])
    with mesh_context(mesh):
        refusals = [by_head_cpu.supports(x, x, mask_of(case), RATE) for x in (shape(2), shape(3))]
        assert refusals == [None, '3 rows cannot be split evenly over 2 devices']
        four_devices = output_and_gradients(by_head_cpu, case, arrays)
    for actual, expected in zip(four_devices, one_device, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-6)


def shape(rows):
    return jax.ShapeDtypeStruct((rows, by_head_cpu.MAX_PLAIN_LENGTH + 1, 2, 8), jnp.float32)
