"""Tests that multi-label metrics equal those of scikit-learn."""

import warnings

import numpy as np
import pytest

from bertjax.metrics.classification import MULTI_LABEL_METRICS, label_scores, multi_label_figures


@pytest.mark.parametrize('share', [0.0, 0.2, 0.9])
def test_multi_label_metrics_equal_scikit_learn(share: float):
    metrics = pytest.importorskip('sklearn.metrics', reason='compares with it')
    rng = np.random.default_rng(3)
    true, predicted = rng.random((40, 6)) < share, rng.random((40, 6)) < share
    true[:, 5] = predicted[:, 5] = False  # This label never occurs.
    figures = multi_label_figures(true, predicted)
    assert tuple(figures) == MULTI_LABEL_METRICS
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for name in MULTI_LABEL_METRICS[:-1]:
            average, _, figure = name.partition('_')
            theirs = getattr(metrics, f'{figure}_score')(true, predicted, average=average, zero_division=0)
            assert figures[name] == pytest.approx(theirs), name
        assert figures['exact'] == pytest.approx(metrics.accuracy_score(true, predicted))
        each = metrics.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    scores = label_scores(true, predicted)
    for ours, theirs in zip((scores.precision, scores.recall, scores.f1, scores.true), each, strict=True):
        np.testing.assert_allclose(ours, theirs)
