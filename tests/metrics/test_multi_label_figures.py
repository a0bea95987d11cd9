"""Multi-label metrics equal scikit-learn's."""

import warnings

import numpy as np
import pytest

from bertjax.metrics.multi_label import FIGURES, label_scores, multi_label_figures


@pytest.mark.parametrize('share', [0.0, 0.2, 0.9])
def test_equal_to_scikit_learn(share: float):
    metrics = pytest.importorskip('sklearn.metrics', reason='compares with it')
    rng = np.random.default_rng(3)
    true, predicted = rng.random((40, 6)) < share, rng.random((40, 6)) < share
    true[:, 5] = predicted[:, 5] = False  # a label that never occurs
    found = multi_label_figures(true, predicted)
    assert tuple(found) == FIGURES
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for name in FIGURES[:-1]:
            average, _, figure = name.partition('_')
            theirs = getattr(metrics, f'{figure}_score')(true, predicted, average=average, zero_division=0)
            assert found[name] == pytest.approx(theirs), name
        assert found['exact'] == pytest.approx(metrics.accuracy_score(true, predicted))
        each = metrics.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    scores = label_scores(true, predicted)
    for ours, theirs in zip((scores.precision, scores.recall, scores.f1, scores.true), each, strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_no_records():
    assert multi_label_figures(np.zeros((0, 2)), np.zeros((0, 2))) == dict.fromkeys(FIGURES)
