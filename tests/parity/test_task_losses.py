"""Tests that the losses of tasks and their gradients equal those of PyTorch."""

import jax
import numpy as np
import pytest

from bertjax.losses import CHOICES, MULTI_LABEL, build_class_weighted, build_label_weighted

B, C = 7, 4
LOGITS = 3 * np.random.default_rng(0).standard_normal((B, C)).astype(np.float32)


def check(objective, batch, theirs, logits):
    """Compares the loss and the gradient of the batch, and the sum of the losses of its parts, with PyTorch."""
    mean = lambda x: objective.losses({'logits': x}, batch)['loss'][0] / objective.weights(batch)['loss']  # noqa: E731
    losses = jax.jit(objective.losses)
    ours, gradient = jax.jit(jax.value_and_grad(mean))(LOGITS)
    theirs.backward()
    assert float(ours) == pytest.approx(theirs.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, logits.grad, rtol=1e-5, atol=1e-7)
    parts = [slice(0, 3), slice(3, B)]
    cut = [losses({'logits': LOGITS[p]}, {k: x[p] for k, x in batch.items()})['loss'] for p in parts]
    (a, n), (b, m) = cut
    assert float(a + b) / float(n + m) == pytest.approx(theirs.item(), rel=1e-5)


@pytest.fixture
def logits(torch):
    return torch.tensor(LOGITS, requires_grad=True)


@pytest.mark.parametrize('weights', [(1.0, 2.5, 0.01, 7.0), (0.1, 0.2, 0.05, 0.1)])
def test_class_weights_equal_torch(torch, logits, weights):
    """The loss is divided by the sum of the weights, which may be below 1."""
    labels = np.array([0, 1, 2, 3, 2, 0, 2], np.int32)
    theirs = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights))(logits, torch.tensor(labels).long())
    batch = {'labels': labels, 'weights': np.ones(B, np.float32)}
    check(build_class_weighted(weights), batch, theirs, logits)
    accuracy = jax.jit(build_class_weighted(weights).losses)({'logits': LOGITS}, batch)['accuracy']
    assert [float(x) for x in accuracy] == [(LOGITS.argmax(1) == labels).sum(), B]  # Not weighted by class.
    # A train step divides by at least 1, as a guard against empty batches, so small weights are scaled up.
    assert float(build_class_weighted(weights).weights({k: x[2:3] for k, x in batch.items()})['loss']) >= 1


@pytest.mark.parametrize('positive', [None, (1.0, 9.0, 0.3, 2.0)])
def test_multi_label_losses_equal_torch(torch, logits, positive):
    labels = np.random.default_rng(1).integers(0, 2, (B, C)).astype(np.float32)
    weight = None if positive is None else torch.tensor(positive)
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=weight)(logits, torch.tensor(labels))
    batch = {'labels': labels, 'weights': np.ones(B, np.float32)}
    objective = MULTI_LABEL if positive is None else build_label_weighted(positive)
    check(objective, batch, theirs, logits)
    total, weight = jax.jit(objective.losses)({'logits': LOGITS}, batch)['accuracy']
    assert float(total) == pytest.approx(((LOGITS > 0) == labels).mean(1).sum()) and float(weight) == B


def test_multi_label_losses_of_large_logits_are_finite():
    batch = {'labels': np.array([[1.0, 0.0]], np.float32), 'weights': np.ones(1, np.float32)}
    total, _ = jax.jit(MULTI_LABEL.losses)({'logits': np.array([[-1e4, 1e4]], np.float32)}, batch)['loss']
    assert float(total) == pytest.approx(1e4)


def test_choices_with_fewer_endings_equal_torch(torch, logits):
    """The logits for PyTorch are minus infinity where there is no ending."""
    labels, endings = np.array([0, 1, 2, 3, 2, 0, 1], np.int32), np.array([4, 2, 3, 4, 3, 2, 2])
    exists = np.arange(C) < endings[:, None]
    masked = logits.masked_fill(torch.tensor(~exists), float('-inf'))
    theirs = torch.nn.CrossEntropyLoss()(masked, torch.tensor(labels).long())
    mask = np.repeat(exists[..., None], 5, -1).astype(np.int32)
    check(CHOICES, {'labels': labels, 'weights': np.ones(B, np.float32), 'attention_mask': mask}, theirs, logits)
