"""Metrics of multi-label classification, equal to those of scikit-learn with zero_division=0."""

import numpy as np
import numpy.typing as npt

from bertjax.metrics.classification import ClassScores, scores_from_counts

FIGURES = ('micro_f1', 'macro_f1', 'micro_precision', 'micro_recall', 'macro_precision', 'macro_recall', 'exact')


def label_scores(true: npt.ArrayLike, predicted: npt.ArrayLike) -> ClassScores:
    """Returns the scores of each label.

    Args:
      true, predicted: Whether each record has each label, bool [N, C].
    """
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    return scores_from_counts((true & predicted).sum(0), true.sum(0), predicted.sum(0))


def multi_label_figures(true: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float | None]:
    """Returns the FIGURES, {name: value}; all values are None if there are no records.

    A micro average counts every decision once. A macro average is the mean over the C labels. `exact` is the share of
    records whose labels are all correct.

    Args:
      true, predicted: Whether each record has each label, bool [N, C].
    """
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    if not len(true):
        return dict.fromkeys(FIGURES)
    by_label, total = label_scores(true, predicted), label_scores(true.reshape(-1, 1), predicted.reshape(-1, 1))
    names = ('f1', 'precision', 'recall')
    figures = {f'micro_{name}': float(getattr(total, name)[0]) for name in names}
    figures |= {f'macro_{name}': float(getattr(by_label, name).mean()) for name in names}
    figures['exact'] = float((true == predicted).all(1).mean())
    return {name: figures[name] for name in FIGURES}
