"""Tests the attention kernels against float64 and against `dot_product`, on one device and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    CASES,
    RATE,
    B,
    Case,
    S,
    arrays_of,
    by_float64,
    dropout_of,
    interpreted,
    mask_of,
    output_and_gradients,
)
from jax.experimental.pallas import tpu as pltpu
from marks import slow

from bertjax.model.attention import by_head_cpu, gpu
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context

__all__ = ['interpreted']

BY_HEAD, FUSED_TPU, FUSED_GPU, PLAIN = (
    IMPLEMENTATIONS[name] for name in ('by_head_cpu', 'fused_tpu', 'fused_gpu', 'dot_product')
)
QUICK = [
    *(('by_head_cpu', name) for name in ('packed', 'left to right')),
    *(('fused_tpu', name) for name in ('packed', 'heads of 128')),
    ('fused_gpu', 'packed'),
]
SLOW = [
    *(('by_head_cpu', name) for name in ('plain', 'heads of 32')),
    *(('fused_tpu', name) for name in ('plain', 'left to right', 'heads of 32')),
    *(('fused_gpu', name) for name in CASES if name != 'packed'),
]


def check(name, case):
    arrays, mask = arrays_of(case), mask_of(case)
    results = output_and_gradients(IMPLEMENTATIONS[name], arrays, mask, case.rate)
    for ours, expected in zip(results, by_float64(arrays, np.asarray(mask.visible(S)), case.rate), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    'name, case', [*QUICK, *(pytest.param(*names, marks=pytest.mark.slow) for names in SLOW)], ids=str
)
def test_output_and_gradients_equal_those_of_float64(interpreted, monkeypatch, name, case):
    monkeypatch.setattr(gpu, 'BLOCKS', (32,))
    check(name, CASES[case])


@pytest.mark.slow
def test_large_blocks_on_a_gpu_give_the_same(interpreted):
    check('fused_gpu', CASES['packed'])


@pytest.mark.parametrize(
    'name', ['packed', *(pytest.param(name, marks=pytest.mark.slow) for name in ('plain', 'left'))]
)
def test_flash_attention_equals_float64(name):
    """Only tokens are compared. In this kernel, padding attends to padding, and the results are unused."""
    case = Case(packed=name == 'packed', causal=name == 'left', heads=2 if name == 'packed' else 1)
    mask = mask_of(case)
    tokens = np.asarray(mask.key_mask)[:, :, None, None]
    query, key, value, cotangent = arrays_of(case)
    arrays = (query, key, value, cotangent * tokens)
    with pltpu.force_tpu_interpret_mode():
        attend = lambda *x: IMPLEMENTATIONS['flash_tpu'].attend(*x, mask, dropout_rate=0.0, dropout=None)  # noqa: E731
        output, pull = jax.vjp(attend, *map(jnp.asarray, arrays[:3]))
        ours = [output * tokens, *pull(jnp.asarray(arrays[3]))]
    expected, *gradients = by_float64(arrays, np.asarray(mask.visible(S)))
    for actual, exact in zip(ours, [expected * tokens, *gradients], strict=True):
        np.testing.assert_allclose(np.asarray(actual, np.float64), exact, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    'kernel',
    [BY_HEAD, *slow(FUSED_TPU, FUSED_GPU)],
    ids=lambda kernel: type(kernel).__name__,
)
def test_bfloat16_is_as_accurate_as_in_dot_product(interpreted, kernel):
    case = CASES['dropout']
    arrays, mask = [jnp.asarray(x, jnp.bfloat16) for x in arrays_of(case)], mask_of(case)
    by_kernel, plain = (output_and_gradients(x, arrays, mask, case.rate) for x in (kernel, PLAIN))
    exact = by_float64(arrays, np.asarray(mask.visible(S)), case.rate)
    for ours, theirs, exactly in zip(by_kernel, plain, exact, strict=True):
        our_error, their_error = (np.sqrt(np.square(x - exactly).mean()) for x in (ours, theirs))
        assert our_error < 1.1 * their_error


@pytest.mark.parametrize(
    'kernel', [BY_HEAD, pytest.param(FUSED_GPU, marks=pytest.mark.slow)], ids=lambda kernel: type(kernel).__name__
)
def test_a_query_without_visible_keys_has_the_gradient_of_the_mean(interpreted, kernel):
    """All keys of the first row are padding, so its weights are all 1 / S, as in `dot_product`."""
    case = Case(rate=RATE)
    mask = mask_of(case).replace(key_mask=mask_of(case).key_mask.at[0].set(0))
    results = (output_and_gradients(x, arrays_of(case), mask, RATE) for x in (kernel, PLAIN))
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-6, rtol=1e-5)


def test_the_tpu_kernel_drops_the_same_weights_as_dot_product(interpreted):
    """If the values are unit vectors, the output is the matrix of attention weights."""
    query, key, *_ = map(jnp.asarray, arrays_of(Case(heads=1, width=S)))
    value = jnp.broadcast_to(jnp.eye(S, dtype=jnp.float32)[None, :, None], query.shape)
    mask = AttentionMask(jnp.ones((B, S), jnp.int32))
    ours, theirs = (
        np.asarray(x.attend(query, key, value, mask, dropout_rate=RATE, dropout=dropout_of())) == 0
        for x in (FUSED_TPU, PLAIN)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert 0.09 < ours.mean() < 0.11


@pytest.mark.slow
def test_the_results_by_head_on_a_mesh_are_equal():
    case = CASES['packed']
    arrays, mask = arrays_of(case), mask_of(case)
    one_device = output_and_gradients(BY_HEAD, arrays, mask, case.rate)
    shape = lambda rows: jax.ShapeDtypeStruct((rows, by_head_cpu.MAX_PLAIN_LENGTH + 1, 2, 8), jnp.float32)  # noqa: E731
    with mesh_context(make_mesh({'data': 2, 'fsdp': 1, 'tensor': 2}, jax.devices()[:4])):
        refusals = [BY_HEAD.supports(x, x, mask, RATE) for x in (shape(2), shape(3))]
        assert refusals == [None, '3 rows cannot be split evenly over 2 devices']
        four_devices = output_and_gradients(BY_HEAD, arrays, mask, case.rate)
    for actual, expected in zip(four_devices, one_device, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-6)
