"""Tests losses, which are pairs of a weighted sum and the sum of the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import mostly_slow, slow

from bertjax.losses import (
    CLASSIFICATION,
    PRETRAINING,
    REGRESSION,
    SPANS,
    TOKENS,
    classification_sums,
    cross_entropy,
    pretraining_losses,
    with_z_loss,
)


def _batch(rng, B=4, P=3, V=11):
    return {
        'masked_ids': rng.integers(0, V, (B, P)).astype(np.int32),
        'masked_weights': (np.arange(P) < np.array([3, 2, 1, 0])[:, None]).astype(np.float32),
        'nsp_labels': np.array([0, 1, 1, 0], np.int32),
        'nsp_weights': np.array([1, 1, 1, 0], np.float32),
    }


def test_pretraining_losses_equal_the_formula_in_float64():
    rng = np.random.default_rng(0)
    batch = _batch(rng)
    outputs = {'mlm_logits': 3 * rng.standard_normal((4, 3, 11)), 'nsp_logits': rng.standard_normal((4, 2))}
    losses = jax.jit(pretraining_losses)({name: x.astype(np.float32) for name, x in outputs.items()}, batch)
    for name, logits, labels, weights in (
        ('mlm', outputs['mlm_logits'], batch['masked_ids'], batch['masked_weights']),
        ('nsp', outputs['nsp_logits'], batch['nsp_labels'], batch['nsp_weights']),
    ):
        log = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        total, weight = losses[f'{name}_loss']
        assert float(total) == pytest.approx((log * weights).sum(), rel=1e-5) and float(weight) == weights.sum()
        correct, weight = losses[f'{name}_accuracy']
        assert float(correct) == ((logits.argmax(-1) == labels) * weights).sum() and float(weight) == weights.sum()


def test_the_z_loss_is_the_mean_squared_log_of_the_normalizer():
    rng = np.random.default_rng(0)
    batch, logits = _batch(rng), 3 * rng.standard_normal((4, 3, 11))
    objective = with_z_loss(PRETRAINING, 1e-4)
    assert objective.factors == {'z_loss': 1e-4} and with_z_loss(PRETRAINING, 0.0) is PRETRAINING
    total, weight = jax.jit(objective.losses)({'mlm_logits': logits.astype(np.float32)}, batch)['z_loss']
    expected = (np.log(np.exp(logits).sum(-1)) ** 2 * batch['masked_weights']).sum()
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(weight) == objective.weights(batch)['z_loss'] == batch['masked_weights'].sum()


@pytest.mark.slow
def test_losses_of_parts_of_a_batch_add_up():
    rng = np.random.default_rng(1)
    batch = _batch(rng)
    outputs = {'mlm_logits': rng.standard_normal((4, 3, 11)), 'nsp_logits': rng.standard_normal((4, 2))}
    half = lambda tree, rows: {name: jnp.asarray(x[rows]) for name, x in tree.items()}  # noqa: E731
    parts = [pretraining_losses(half(outputs, rows), half(batch, rows)) for rows in (slice(0, 1), slice(1, 3))]
    whole = pretraining_losses(half(outputs, slice(None)), batch)
    for name, (total, weight) in whole.items():
        assert float(total) == pytest.approx(sum(float(part[name][0]) for part in parts), rel=1e-6)
        assert float(weight) == sum(float(part[name][1]) for part in parts)


def test_losses_are_zero_without_weights_and_there_may_be_no_pair_head():
    batch = {name: np.zeros_like(x) for name, x in _batch(np.random.default_rng(0)).items()}
    losses = jax.jit(pretraining_losses)({'mlm_logits': np.ones((4, 3, 11), np.float32)}, batch)
    assert {name: tuple(map(float, pair)) for name, pair in losses.items()} == dict.fromkeys(
        ('mlm_loss', 'mlm_accuracy'), (0.0, 0.0)
    )


def test_losses_of_large_logits_are_finite_and_those_of_bfloat16_are_float32():
    logits = np.array([[1e4, -1e4, -1e9]], np.float32)
    assert float(jax.jit(cross_entropy)(logits, np.array([1]))[0]) == pytest.approx(2e4)
    outputs = {'mlm_logits': np.ones((4, 3, 11), jnp.bfloat16)}
    losses = jax.jit(pretraining_losses)(outputs, _batch(np.random.default_rng(0)))
    assert all(x.dtype == jnp.float32 for pair in losses.values() for x in pair)
    assert float(losses['mlm_loss'][0]) == pytest.approx(6 * np.log(11), rel=1e-6)


def _task_batch(rng, B=4, S=6):
    """Returns a batch with labels for every kind of task, and outputs. The last row is padding with weight 0."""
    lengths = np.array([6, 4, 2, 0])
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    batch = {
        'attention_mask': mask,
        'weights': np.array([1, 0.5, 1, 0], np.float32),
        'labels': np.array([2, 0, 1, 0], np.int32),
        'token_labels': rng.integers(0, 3, (B, S)).astype(np.int32) * mask,
        'token_weights': (mask * (np.arange(S) % 2)).astype(np.float32),
        'start': np.array([1, 0, 1, 0], np.int32),
        'end': np.array([5, 3, 1, 0], np.int32),
    }
    outputs = {
        'logits': rng.standard_normal((B, 3)),
        'token_logits': rng.standard_normal((B, S, 3)),
        'start_logits': rng.standard_normal((B, S)),
        'end_logits': rng.standard_normal((B, S)),
    }
    return batch, {name: 3 * x for name, x in outputs.items()}


def _log_loss(logits, labels):
    """Returns the cross entropies, computed with NumPy in float64."""
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def _span_loss(outputs, batch):
    where = np.where(batch['attention_mask'] > 0, 0.0, -np.inf)
    rows = batch['weights'] > 0
    parts = [_log_loss((outputs[f'{name}_logits'] + where)[rows], batch[name][rows]) for name in ('start', 'end')]
    return (sum(parts) / 2 * batch['weights'][rows]).sum()


TASKS = {
    'classification': (CLASSIFICATION, lambda o, b: (_log_loss(o['logits'], b['labels']) * b['weights']).sum(), 2.5),
    'tokens': (
        TOKENS,
        lambda o, b: (_log_loss(o['token_logits'], b['token_labels']) * b['token_weights']).sum(),
        6.0,  # The odd positions of rows of 6, 4 and 2 tokens.
    ),
    'spans': (SPANS, _span_loss, 2.5),
}


@pytest.mark.parametrize('task', TASKS)
def test_task_losses_equal_the_formula_in_float64(task):
    objective, formula, weight = TASKS[task]
    batch, outputs = _task_batch(np.random.default_rng(3))
    losses = jax.jit(objective.losses)({name: x.astype(np.float32) for name, x in outputs.items()}, batch)
    assert float(losses['loss'][0]) == pytest.approx(formula(outputs, batch), rel=1e-5)
    assert float(losses['loss'][1]) == float(objective.weights(batch)['loss']) == weight
    assert all(x.dtype == jnp.float32 for pair in losses.values() for x in pair)


def test_accuracies_of_tasks_are_weighted_hits():
    batch, outputs = _task_batch(np.random.default_rng(4))
    spans = jax.jit(SPANS.losses)(outputs, batch)
    accuracies = {
        'classification': jax.jit(CLASSIFICATION.losses)(outputs, batch)['accuracy'],
        'tokens': jax.jit(TOKENS.losses)(outputs, batch)['accuracy'],
        'start': spans['start_accuracy'],
        'end': spans['end_accuracy'],
    }
    spans = {name: np.where(batch['attention_mask'] > 0, outputs[f'{name}_logits'], -1e9) for name in ('start', 'end')}
    expected = {
        'classification': ((outputs['logits'].argmax(-1) == batch['labels']) * batch['weights']).sum(),
        'tokens': ((outputs['token_logits'].argmax(-1) == batch['token_labels']) * batch['token_weights']).sum(),
        **{name: ((x.argmax(-1) == batch[name]) * batch['weights']).sum() for name, x in spans.items()},
    }
    assert {name: float(total) for name, (total, _) in accuracies.items()} == pytest.approx(expected)
    assert float(accuracies['tokens'][1]) == 6 and float(accuracies['end'][1]) == 2.5


def test_regression_is_the_squared_error():
    batch = {'labels': np.array([1.0, 4.0, 0.5], np.float32), 'weights': np.array([1, 0.5, 0], np.float32)}
    losses = jax.jit(REGRESSION.losses)({'logits': np.array([[3.0], [1.0], [100.0]], np.float32)}, batch)
    assert {name: tuple(map(float, pair)) for name, pair in losses.items()} == {'loss': (4 + 0.5 * 9, 1.5)}
    assert float(REGRESSION.weights(batch)['loss']) == 1.5


@pytest.mark.parametrize('task', mostly_slow(TASKS, 'classification', 'tokens'))
def test_the_padded_length_does_not_change_the_loss(task):
    objective = TASKS[task][0]
    batch, outputs = _task_batch(np.random.default_rng(5))

    def widen(x, fill):
        return np.pad(x, [(0, 0), (0, 4)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)

    wide_batch = {name: widen(x, 0) if x.ndim == 2 else x for name, x in batch.items()}
    wide_outputs = {name: widen(x, 50.0) if name != 'logits' else x for name, x in outputs.items()}
    losses = jax.jit(objective.losses)
    one, two = losses(outputs, batch), losses(wide_outputs, wide_batch)
    for name, (total, weight) in one.items():
        assert float(two[name][0]) == pytest.approx(float(total), rel=1e-6) and float(two[name][1]) == float(weight)


@pytest.mark.parametrize('classes', [384, *slow(7)])  # On CPUs, 384 classes are three blocks.
def test_cross_entropy_and_its_gradient_equal_the_plain_formula(classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 20, (3, 4, classes)).astype(np.float32)
    logits[..., -1] = -1e9
    labels = rng.integers(0, classes - 1, (3, 4))

    def plain(logits):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]

    @jax.jit
    def values_and_gradients(logits):
        actual, pull = jax.vjp(lambda logits: cross_entropy(logits, labels), logits)
        expected, reference = jax.vjp(plain, logits)
        return (actual, pull(actual)[0]), (expected, reference(actual)[0])

    (actual, gradient), (expected, plain_gradient) = values_and_gradients(logits)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('classes', [384, *slow(7)])
def test_the_first_of_equal_logits_is_the_prediction(classes):
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 4, (500, classes)).astype(np.float32)  # Most rows have several largest logits.
    logits[0] = 0.0
    labels = np.where(rng.random(500) < 0.5, logits.argmax(-1), rng.integers(0, classes, 500))
    accuracy, _ = jax.jit(classification_sums)(logits, labels, np.ones(500))['accuracy']
    assert float(accuracy) == (logits.argmax(-1) == labels).sum()


@pytest.mark.parametrize('classes', [384, *slow(7)])
def test_unused_rows_may_have_labels_that_are_no_classes(classes):
    logits = np.random.default_rng(0).normal(size=(5, classes)).astype(np.float32)
    labels, weights = np.array([3, -100, -1, classes, 1000]), np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    loss = lambda x: classification_sums(x, labels, weights)['loss'][0]  # noqa: E731
    total, gradient = map(np.asarray, jax.jit(jax.value_and_grad(loss))(logits))
    assert float(total) == pytest.approx(float(jax.jit(cross_entropy)(logits[:1], labels[:1])[0]))
    assert not gradient[1:].any() and gradient[0].any()
    empty = jax.jit(classification_sums)(logits[:0], labels[:0], weights[:0])
    assert [float(x) for pair in empty.values() for x in pair] == [0.0] * 4
