"""Tests the capture of hidden states, attention scores and probabilities, for scanned and unrolled layers."""

import jax
import numpy as np
import pytest

from bertjax.model import capture
from bertjax.model.capture import CAPTURES, apply_capturing
from bertjax.model.heads import BertForClassification

QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}


def capture_all(model, params, inputs):
    forward = lambda p, i: apply_capturing(model, p, *i, capture=CAPTURES)  # noqa: E731
    return jax.jit(forward, compiler_options=QUICK)(params, tuple(inputs))


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'scan_layers': False}, {'remat': 'full', 'causal': True, 'pre_norm': True}])
def test_captured_values_equal_those_of_the_layers(make_model, inputs, changes):
    model, params = make_model(**changes)
    c, mask = model.config, inputs[2]
    outputs, captured = capture_all(model, params, inputs)
    plain = jax.jit(
        lambda p, i: (
            model.apply({'params': p}, *i),
            model.apply({'params': p}, *i[:3], method='encode')[1],
        ),
        compiler_options=QUICK,
    )
    expected, layers = plain(params, tuple(inputs))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), outputs, expected)
    np.testing.assert_allclose(captured['hidden'], layers, rtol=1e-5, atol=1e-6)
    assert captured['scores'].shape == captured['probabilities'].shape == (c.num_layers, 8, c.num_heads, 16, 16)
    assert not np.allclose(captured['scores'][0], captured['scores'][1], atol=1e-4)
    scores = np.asarray(captured['scores'], np.float64)[:, :-1]  # The last row is only padding.
    visible = np.broadcast_to(mask[:-1, None, None, :] > 0, scores.shape)
    visible = visible & np.tri(16, dtype=bool) if c.causal else visible
    exp = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    probabilities = exp / exp.sum(-1, keepdims=True)
    np.testing.assert_allclose(captured['probabilities'][:, :-1], probabilities, rtol=1e-4, atol=1e-6)


def test_unrolled_layers_are_in_order():
    layers = {f'layers_{i}': {'attention': {'value': np.full(2, i)}} for i in (0, 1, 10, 11, *range(2, 10))}
    np.testing.assert_array_equal(capture._stack_values(layers), np.repeat(np.arange(12)[:, None], 2, 1))


@pytest.mark.slow
def test_capture_with_first_only_has_all_positions(small_config, make_params, inputs):
    model = BertForClassification(small_config(scan_layers=False), outputs=3)
    params = make_params(model)
    outputs, captured = capture_all(model, params, inputs[:3])
    assert captured['hidden'].shape == (4, 8, 16, 32) and captured['scores'].shape == (3, 8, 4, 16, 16)
    plain = jax.jit(lambda p, i: model.apply({'params': p}, *i), compiler_options=QUICK)
    expected = plain(params, tuple(inputs[:3]))
    np.testing.assert_allclose(outputs['logits'], expected['logits'], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_without_capture_the_program_is_unchanged(make_model, inputs):
    model, params = make_model()
    assert set(model.init(jax.random.key(0), *inputs)) == {'params'}
    text = jax.jit(lambda p: model.apply({'params': p}, *inputs)).lower(params).as_text()
    B, H, S, L = 8, 4, 16, 3
    assert f'{L}x{B}x{H}x{S}x{S}' not in text
    capture_scores = jax.jit(lambda p: apply_capturing(model, p, *inputs, capture=['scores'])[1])
    assert f'{L}x{B}x{H}x{S}x{S}' in capture_scores.lower(params).as_text()
