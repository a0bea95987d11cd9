"""Figures of records with any number of labels, equal to scikit-learn's with zero_division=0; None for no records."""

import numpy as np
import numpy.typing as npt

from bertjax.metrics.classification import ClassScores, scores_of_counts

FIGURES = ('micro_f1', 'macro_f1', 'micro_precision', 'micro_recall', 'macro_precision', 'macro_recall', 'exact')


def label_scores(true: npt.ArrayLike, predicted: npt.ArrayLike) -> ClassScores:
    """Precision, recall and F1 of each label, from two bool arrays [N, C]."""
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    return scores_of_counts((true & predicted).sum(0), true.sum(0), predicted.sum(0))


def multi_label_figures(true: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float | None]:
    """FIGURES of two bool arrays [N, C]: micro counts every decision once, macro is the mean over the C labels, `exact`
    is the share of records with exactly the right labels."""
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    if not len(true):
        return dict.fromkeys(FIGURES)
    each, all_ = label_scores(true, predicted), label_scores(true.reshape(-1, 1), predicted.reshape(-1, 1))
    names = ('f1', 'precision', 'recall')
    found = {f'micro_{name}': float(getattr(all_, name)[0]) for name in names}
    found |= {f'macro_{name}': float(getattr(each, name).mean()) for name in names}
    found['exact'] = float((true == predicted).all(1).mean())
    return {name: found[name] for name in FIGURES}
