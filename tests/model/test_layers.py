"""Tests layers with custom gradients against automatic differentiation of plain formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

from bertjax.model.attention import dot_product
from bertjax.model.bert import logits_on_cpu
from bertjax.model.config import BertConfig
from bertjax.model.encoder import REMAT_POLICIES, resolve_remat
from bertjax.model.layers import add_bias, layer_norm, product, save_residual

EPSILON = 1e-12


def _plain_norm(x, scale, bias):
    x = x.astype(jnp.float32)
    centered = x - x.mean(-1, keepdims=True)
    y = centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + EPSILON)
    return y * scale + bias


@functools.partial(jax.jit, static_argnums=0)
def _value_and_gradients(function, arrays, cotangent):
    """Returns the value of the function, and the gradients of its product with `cotangent` after a cast."""
    value, pull = jax.vjp(function, *arrays)
    return value, *pull(cotangent.astype(value.dtype))


def _random(*shape, seed=0, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(np.float32)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_layer_norm_and_its_gradients_equal_the_formula(dtype):
    x, scale, bias = _random(3, 5, 24, mean=2.0).astype(dtype), _random(24, seed=1), _random(24, seed=2)
    weights = _random(3, 5, 24, seed=3)
    cotangent = weights.astype(dtype)
    actual, *ours = _value_and_gradients(lambda *a: layer_norm(*a, EPSILON), (x, scale, bias), cotangent)
    expected, *theirs = _value_and_gradients(_plain_norm, (x, scale, bias), cotangent)
    assert actual.dtype == dtype
    tolerance = 2.0**-8 if dtype == 'bfloat16' else 2e-6  # The rounding error of the dtype for values up to 1.
    np.testing.assert_allclose(np.asarray(actual, np.float32), expected, rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize('mean', [0.0, 30.0, 3000.0])
def test_one_pass_statistics_of_bfloat16_are_more_accurate_than_its_rounding(mean):
    """Even for means that are farther from 0 than those of hidden states, the rounding of x causes a larger error."""
    float32 = _random(400, 768, mean=mean)
    x, ones, zeros = float32.astype(jnp.bfloat16), np.ones(768, np.float32), np.zeros(768, np.float32)
    rounded = np.asarray(x, np.float64)
    exact = (rounded - rounded.mean(-1, keepdims=True)) / np.sqrt(rounded.var(-1, keepdims=True) + EPSILON)
    before = np.asarray(float32, np.float64)
    unrounded = (before - before.mean(-1, keepdims=True)) / before.std(-1, keepdims=True)
    normalized = jax.jit(lambda *a: layer_norm(*a, EPSILON))(x, ones, zeros)
    error = np.abs(np.asarray(normalized, np.float64) - exact).max()
    assert error < max(np.abs(unrounded - exact).max(), 2.0**-7)


def test_layer_norm_of_equal_values_is_its_bias():
    for dtype in ('float32', 'bfloat16'):
        x, scale = np.full((2, 48), 3.0, dtype), np.ones(48, np.float32)
        y = jax.jit(lambda *a: layer_norm(*a, EPSILON))(x, scale, scale / 2)
        np.testing.assert_array_equal(np.asarray(y, np.float32), 0.5)


@pytest.mark.parametrize('sum_by_matmul', [False, True], ids=['sum', 'product'])
def test_the_gradient_of_a_bias_is_summed_in_float32(sum_by_matmul):
    x, bias = np.zeros((64, 128, 8), jnp.bfloat16), np.arange(8, dtype=np.float32)
    cotangent = _random(64, 128, 8, mean=1.0).astype(jnp.bfloat16)
    y, d_x, d_bias = _value_and_gradients(lambda x, b: add_bias(x, b, sum_by_matmul), (x, bias), cotangent)
    np.testing.assert_array_equal(y, x + bias.astype(jnp.bfloat16))
    np.testing.assert_array_equal(d_x, cotangent)
    exact = np.asarray(cotangent, np.float64).sum((0, 1))
    # In bfloat16, the error of a sum of 8,192 numbers would be 1e-2.
    np.testing.assert_allclose(d_bias, exact, rtol=1e-5)


def test_the_output_of_a_kernel_is_saved_without_a_rounded_copy():
    x, kernel = _random(2, 3, 4), _random(4, 5, seed=1)

    def total(product, x, kernel):
        return (product(jnp.sin(x), kernel) * jnp.arange(5)).sum()

    def gradients(product):
        policy = REMAT_POLICIES['elementwise']
        return jax.grad(jax.checkpoint(lambda *a: total(product, *a), policy=policy), (0, 1))

    plain = lambda x, kernel: save_residual(x) @ kernel  # noqa: E731
    custom = lambda x, kernel: product(x, kernel, True)  # noqa: E731
    ours, theirs = (str(jax.make_jaxpr(gradients(function))(x, kernel)) for function in (custom, plain))
    assert ours.count('sin ') == theirs.count('sin ') == 1  # Neither recomputes the sine.
    assert 'reduce_precision' in theirs and 'reduce_precision' not in ours
    expected = jax.jit(jax.grad(lambda *a: total(jnp.matmul, *a), (0, 1)))(x, kernel)
    actual = jax.jit(gradients(custom))(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), actual, expected)


@pytest.mark.parametrize('dtype', ['float32', *slow('bfloat16')])
@pytest.mark.parametrize(
    ('ours', 'plain', 'shapes'),
    [
        (product, jnp.matmul, ((2, 3, 4), (4, 5))),
        (product, jnp.matmul, ((2, 3, 5), (5, 4))),
        (logits_on_cpu, lambda x, y, z: jnp.einsum('BPD,VD->BPV', x, y) + z, ((2, 3, 4), (7, 4), (7,))),
        (dot_product.scores_on_cpu, lambda q, k: jnp.einsum('BQHK,BSHK->BHQS', q, k), ((2, 3, 2, 4), (2, 5, 2, 4))),
        (dot_product.mix_on_cpu, lambda w, v: jnp.einsum('BHQS,BSHK->BQHK', w, v), ((2, 2, 3, 5), (2, 5, 2, 4))),
    ],
    ids=['product', 'narrow', 'logits', 'scores', 'mix'],
)
def test_products_for_cpus_equal_plain_products(ours, plain, shapes, dtype):
    arrays = [_random(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
    cotangent = _random(*jax.eval_shape(plain, *arrays).shape, seed=3).astype(dtype)
    actual = _value_and_gradients(ours, arrays, cotangent)
    expected = _value_and_gradients(plain, [x.astype(np.float32) for x in arrays], cotangent)
    bound = 2.0**-6 if dtype == 'bfloat16' else 1e-5
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), b, rtol=bound, atol=bound)
    assert [a.dtype for a in actual[1:]] == [x.dtype for x in arrays]


def test_remat_auto_depends_on_the_platform():
    config = BertConfig()
    assert config.remat == 'auto'
    assert [resolve_remat(config, kind) for kind in ('tpu', 'gpu', 'cpu')] == ['elementwise', 'none', 'none']
    assert resolve_remat(BertConfig(remat='full'), 'tpu') == 'full'
