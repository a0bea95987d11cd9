"""Metrics of relations, compared with TACRED's definition and scikit-learn's."""

import numpy as np
import pytest

from bertjax.metrics.classification import confusion
from bertjax.metrics.relations import relation_figures


def test_metrics_equal_scikit_learn():
    metrics = pytest.importorskip('sklearn.metrics', reason='what is compared with')
    generator = np.random.default_rng(0)
    for negative in (None, 0, 2):
        true, guessed = generator.integers(0, 4, (2, 300))
        found = relation_figures(confusion(true, guessed, 5), negative)
        kept = [label for label in range(4) if label != negative]
        options = {'labels': kept, 'zero_division': 0}
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(true, guessed, average='micro', **options)
        assert [found[name] for name in ('precision', 'recall', 'micro_f1')] == pytest.approx([precision, recall, f1])
        assert found['macro_f1'] == pytest.approx(metrics.f1_score(true, guessed, average='macro', **options))
        assert found['accuracy'] == pytest.approx(metrics.accuracy_score(true, guessed))
        if negative is None:
            assert found['micro_f1'] == pytest.approx(found['accuracy'])


def test_the_official_definition():
    """Of 4 relations, 3 are predicted as relations, 2 of them rightly; 1 more is a false positive: 2/4 and 2/4."""
    true, guessed = [1, 1, 2, 2, 0, 0], [1, 2, 2, 0, 1, 0]
    found = relation_figures(confusion(true, guessed, 3), 0)
    assert (found['precision'], found['recall'], found['micro_f1']) == (2 / 4, 2 / 4, 0.5)


def test_no_predicted_relation():
    nothing = relation_figures(confusion([1, 0], [0, 0], 2), 0)
    assert (nothing['precision'], nothing['recall'], nothing['micro_f1']) == (1, 0, 0)  # as in the official scorer
    assert nothing['macro_f1'] == 0 and nothing['accuracy'] == 0.5
    assert set(relation_figures(np.zeros((2, 2), np.int64), 0).values()) == {None}
