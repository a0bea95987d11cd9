"""Losses are sums and weights over what counts, in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.losses import cross_entropy, pretraining_losses


def _batch(rng, B=4, P=3, V=11):
    return {
        'masked_ids': rng.integers(0, V, (B, P)).astype(np.int32),
        'masked_weights': (np.arange(P) < np.array([3, 2, 1, 0])[:, None]).astype(np.float32),
        'nsp_labels': np.array([0, 1, 1, 0], np.int32),
        'nsp_weights': np.array([1, 1, 1, 0], np.float32),
    }


def test_equal_to_the_formula_in_float64():
    rng = np.random.default_rng(0)
    batch = _batch(rng)
    outputs = {'mlm_logits': 3 * rng.standard_normal((4, 3, 11)), 'nsp_logits': rng.standard_normal((4, 2))}
    losses = pretraining_losses({name: jnp.asarray(x, jnp.float32) for name, x in outputs.items()}, batch)
    for name, logits, labels, weights in (
        ('mlm', outputs['mlm_logits'], batch['masked_ids'], batch['masked_weights']),
        ('nsp', outputs['nsp_logits'], batch['nsp_labels'], batch['nsp_weights']),
    ):
        log = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        total, weight = losses[f'{name}_loss']
        assert float(total) == pytest.approx((log * weights).sum(), rel=1e-5) and float(weight) == weights.sum()
        right, weight = losses[f'{name}_accuracy']
        assert float(right) == ((logits.argmax(-1) == labels) * weights).sum() and float(weight) == weights.sum()


def test_rows_of_padding_add_nothing_and_parts_add_up():
    rng = np.random.default_rng(1)
    batch = _batch(rng)
    outputs = {'mlm_logits': rng.standard_normal((4, 3, 11)), 'nsp_logits': rng.standard_normal((4, 2))}
    half = lambda tree, rows: {name: jnp.asarray(x[rows]) for name, x in tree.items()}  # noqa: E731
    parts = [pretraining_losses(half(outputs, rows), half(batch, rows)) for rows in (slice(0, 1), slice(1, 3))]
    whole = pretraining_losses(half(outputs, slice(None)), batch)
    for name, (total, weight) in whole.items():
        assert float(total) == pytest.approx(sum(float(part[name][0]) for part in parts), rel=1e-6)
        assert float(weight) == sum(float(part[name][1]) for part in parts)


def test_a_batch_without_weight_is_zero_over_zero_and_no_pair_head_no_pair_loss():
    batch = {name: np.zeros_like(x) for name, x in _batch(np.random.default_rng(0)).items()}
    losses = pretraining_losses({'mlm_logits': jnp.ones((4, 3, 11))}, batch)
    assert {name: tuple(map(float, pair)) for name, pair in losses.items()} == dict.fromkeys(
        ('mlm_loss', 'mlm_accuracy'), (0.0, 0.0)
    )


def test_large_logits_stay_finite_and_bfloat16_is_widened():
    logits = jnp.array([[1e4, -1e4, -1e9]])
    assert float(cross_entropy(logits, jnp.array([1]))[0]) == pytest.approx(2e4)
    outputs = {'mlm_logits': jnp.ones((4, 3, 11), jnp.bfloat16)}
    losses = pretraining_losses(outputs, _batch(np.random.default_rng(0)))
    assert all(x.dtype == jnp.float32 for pair in losses.values() for x in pair)
    assert float(losses['mlm_loss'][0]) == pytest.approx(6 * np.log(11), rel=1e-6)
