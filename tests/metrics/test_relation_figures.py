"""Tests metrics of relation extraction against scikit-learn and the definition of TACRED."""

import numpy as np
import pytest

from bertjax.metrics.classification import confusion, relation_figures


def test_metrics_equal_scikit_learn():
    metrics = pytest.importorskip('sklearn.metrics', reason='compares with its figures')
    generator = np.random.default_rng(0)
    for negative in (None, 0, 2):
        true, predicted = generator.integers(0, 4, (2, 300))
        figures = relation_figures(confusion(true, predicted, 5), negative)
        labels = [label for label in range(4) if label != negative]
        options = {'labels': labels, 'zero_division': 0}
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(true, predicted, average='micro', **options)
        assert [figures[name] for name in ('precision', 'recall', 'micro_f1')] == pytest.approx([precision, recall, f1])
        assert figures['macro_f1'] == pytest.approx(metrics.f1_score(true, predicted, average='macro', **options))
        assert figures['accuracy'] == pytest.approx(metrics.accuracy_score(true, predicted))
        if negative is None:
            assert figures['micro_f1'] == pytest.approx(figures['accuracy'])


def test_metrics_follow_the_official_definition():
    """There are 4 relations and 4 predicted relations, of which 2 are correct: precision and recall are 2/4."""
    true, predicted = [1, 1, 2, 2, 0, 0], [1, 2, 2, 0, 1, 0]
    figures = relation_figures(confusion(true, predicted, 3), 0)
    assert (figures['precision'], figures['recall'], figures['micro_f1']) == (2 / 4, 2 / 4, 0.5)


def test_metrics_without_predicted_relations():
    figures = relation_figures(confusion([1, 0], [0, 0], 2), 0)
    assert (figures['precision'], figures['recall'], figures['micro_f1']) == (1, 0, 0)  # As in the official scorer.
    assert figures['macro_f1'] == 0 and figures['accuracy'] == 0.5
