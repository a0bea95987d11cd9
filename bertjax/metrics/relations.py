"""Figures of relations: F1 over all labels but the one that says there is no relation."""

import numpy as np

from bertjax.metrics.classification import accuracy, class_scores


def relation_figures(table: np.ndarray, negative: int | None) -> dict[str, float | None]:
    """micro_f1, precision, recall, macro_f1 and accuracy, each in [0, 1]; None without records.

    With a negative label the first three are those of TACRED's own scorer (yuhaozhang/tacred-relation,
    utils/scorer.py): right ones among those that were predicted, and among those that there are, neither of them
    negative; where nothing was predicted precision is 1. Without one they all are the accuracy, as micro-averages are.
    macro_f1 is the mean over the labels but the negative that occur or were predicted, as of scikit-learn.

    Args:
      table: int64 [C, C], see `classification.confusion`.
      negative: the number of the label for no relation; None where there is none.
    """
    if not table.sum():
        return dict.fromkeys(('micro_f1', 'precision', 'recall', 'macro_f1', 'accuracy'))
    kept = np.ones(len(table), bool)
    if negative is not None:
        kept[negative] = False
    right = int(table.diagonal()[kept].sum())
    guessed, gold = int(table.sum(0)[kept].sum()), int(table.sum(1)[kept].sum())
    precision = right / guessed if guessed else 1.0
    recall = right / gold if gold else 0.0
    scores = class_scores(table)
    seen = kept & ((scores.true + scores.predicted) > 0)
    return {
        'micro_f1': 2 * precision * recall / (precision + recall) if right else 0.0,
        'precision': precision,
        'recall': recall,
        'macro_f1': float(scores.f1[seen].mean()) if seen.any() else 0.0,
        'accuracy': accuracy(table),
    }
