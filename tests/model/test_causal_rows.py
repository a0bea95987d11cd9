"""Tests batches with causal and bidirectional rows, and predictions from the previous position."""

import re

import jax
import numpy as np
import pytest

from bertjax.api import make_apply
from bertjax.data.features import INPUTS
from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS, attend, choose_attention
from bertjax.model.bert import BertForPreTraining
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context

B, S, H, K = 3, 160, 2, 16


@pytest.mark.parametrize('name', IMPLEMENTATIONS)
@pytest.mark.parametrize('window', [0, 20])
@pytest.mark.parametrize('packed', [False, True])
def test_causal_queries_are_honored_or_refused(name, window, packed):
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((B, S, H, K)).astype(np.float32) for _ in range(3))
    ids = np.repeat([[1, 2], [1, 2], [1, 2]], S // 2, axis=1).astype(np.int32)
    causal = np.zeros((B, S), np.int32)
    causal[0], causal[1, S // 2 :] = 1, 1
    mask = AttentionMask(np.ones((B, S), np.int32), ids if packed else None, causal_queries=causal, window=window)
    try:
        choose_attention(name, query, key, mask, 0.0)
    except UserError as error:
        assert re.search(r'does not support (causal|a window)', str(error))
        assert name not in ('dot_product', 'by_head_cpu')
        return
    actual = jax.jit(lambda *x: attend(name, *x, mask, dropout_rate=0.0, dropout=None))(query, key, value)
    visible = (causal[:, :, None] == 0) | np.tri(S, dtype=bool)
    visible = visible & (ids[:, :, None] == ids[:, None]) if packed else visible
    if window:
        visible = visible & (np.abs(np.arange(S)[:, None] - np.arange(S)) <= window // 2)
    scores = np.einsum('bqhk,bshk->bhqs', query, key).astype(np.float64) / np.sqrt(K)
    weights = np.where(visible[:, None], np.exp(scores), 0)
    expected = np.einsum('bhqs,bshk->bqhk', weights / weights.sum(-1, keepdims=True), value)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_gradients_equal_those_of_dot_product_on_one_device_and_on_a_mesh():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((4, 100, 2, 16)).astype(np.float32) for _ in range(4)]
    causal = (rng.random((4, 1)) < 0.5).astype(np.int32) * np.ones((4, 100), np.int32)
    mask = AttentionMask(np.ones((4, 100), np.int32), causal_queries=causal)

    def gradients(name):
        def loss(query, key, value, cotangent):
            return (attend(name, query, key, value, mask, dropout_rate=0.0, dropout=None) * cotangent).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    expected, results = gradients('dot_product'), [gradients('by_head_cpu')]
    with mesh_context(make_mesh({'data': 2, 'fsdp': 1, 'tensor': 2}, jax.devices()[:4])):
        results += [gradients('by_head_cpu'), gradients('dot_product')]
    for ours in results:
        for x, y in zip(ours, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_shifted_predictions_use_the_previous_position(make_model, small_config, inputs):
    plain, params = make_model()
    shifted = BertForPreTraining(small_config(shifted_predictions=True))
    *rows, positions = inputs
    positions = np.maximum(positions, 1)
    expected = plain.apply({'params': params}, *rows, positions - 1)['mlm_logits']
    np.testing.assert_array_equal(shifted.apply({'params': params}, *rows, positions)['mlm_logits'], expected)
    batch = dict(zip((*INPUTS, 'masked_positions'), (*rows, positions), strict=True))
    outputs = make_apply(shifted)(params, batch)
    np.testing.assert_allclose(outputs['mlm_logits'], expected[..., :150], rtol=1e-6, atol=1e-6)


def test_only_causal_rows_use_the_previous_position(make_model, inputs):
    model, params = make_model()
    *rows, positions = inputs
    positions = np.maximum(positions, 1)
    causal = rows[2] * (np.arange(8) % 2 == 0)[:, None]
    shift = (np.arange(8) % 2 == 0)[:, None] * np.take_along_axis(rows[2], positions, 1)
    hidden, _ = model.apply({'params': params}, *rows, causal=causal, method=lambda m, *x, **y: m.encoder(*x, **y))
    expected = model.apply({'params': params}, hidden, positions - shift, method='predict_tokens')
    found = model.apply({'params': params}, *rows, positions, causal=causal)['mlm_logits']
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    batch = dict(zip((*INPUTS, 'masked_positions', 'causal'), (*rows, positions, causal), strict=True))
    outputs = make_apply(model)(params, batch)
    np.testing.assert_allclose(outputs['mlm_logits'], expected[..., :150], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ('shifted', 'scan_layers'),
    [(True, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, False), (False, True)))],
)
def test_causal_predictions_do_not_depend_on_the_predicted_and_later_tokens(make_model, inputs, shifted, scan_layers):
    changes = {'pre_norm': True, 'position': 'rope', 'attention_window': 6, 'global_every': 2}
    model, params = make_model(shifted_predictions=shifted, scan_layers=scan_layers, **changes)
    ids, segments, mask, _ = inputs
    causal = mask * (np.arange(8) % 2 == 0)[:, None]
    positions = np.full((8, 3), 4, np.int32)
    forward = jax.jit(lambda ids: model.apply({'params': params}, ids, segments, mask, positions, causal=causal))
    other = np.where(np.arange(16) >= 4, (ids + 7) % 150 * mask, ids)
    before, after = (np.asarray(forward(x)['mlm_logits'])[:, 0] for x in (ids, other))
    changed = (before != after).any(-1)
    assert not changed[[0, 2, 4]].any() and changed[[1, 3]].all()
