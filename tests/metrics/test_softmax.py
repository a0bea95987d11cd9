"""Tests the softmax of NumPy arrays."""

import numpy as np
import pytest

from bertjax.metrics.softmax import softmax


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('shape', [(5,), (3, 4), (2, 3, 4), (0, 4)])
def test_softmax_equals_its_formula(shape, dtype):
    logits = np.random.default_rng(0).normal(size=shape).astype(dtype)
    probabilities = softmax(logits)
    assert probabilities.dtype == dtype and probabilities.shape == shape
    assert probabilities == pytest.approx(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), rel=1e-5)


def test_large_logits_do_not_overflow():
    assert softmax(np.array([1e4, 1e4, -1e4])).tolist() == [0.5, 0.5, 0]
