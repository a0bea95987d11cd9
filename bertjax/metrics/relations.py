"""Metrics of relation classification: F1 over all labels except the negative label, which means 'no relation'."""

import numpy as np

from bertjax.metrics.classification import accuracy, class_scores


def relation_figures(table: np.ndarray, negative: int | None) -> dict[str, float | None]:
    """Returns micro_f1, precision, recall, macro_f1 and accuracy, each in [0, 1], or None if there are no records.

    With a negative label, micro_f1, precision and recall are those of TACRED's scorer (yuhaozhang/tacred-relation,
    utils/scorer.py). Precision is the share of non-negative predictions that are correct. Recall is the share of
    non-negative records that are predicted correctly. Precision is 1 if all predictions are negative. Without a
    negative label, all three metrics equal the accuracy.

    macro_f1 is the mean F1 of the other labels that occur or were predicted, as in scikit-learn.

    Args:
      table: The confusion table, int64 [C, C], see classification.py:confusion.
      negative: The index of the negative label; None if there is no such label.
    """
    if not table.sum():
        return dict.fromkeys(('micro_f1', 'precision', 'recall', 'macro_f1', 'accuracy'))
    positive = np.ones(len(table), bool)
    if negative is not None:
        positive[negative] = False
    right = int(table.diagonal()[positive].sum())
    guessed, gold = int(table.sum(0)[positive].sum()), int(table.sum(1)[positive].sum())
    precision = right / guessed if guessed else 1.0
    recall = right / gold if gold else 0.0
    scores = class_scores(table)
    seen = positive & ((scores.true + scores.predicted) > 0)
    return {
        'micro_f1': 2 * precision * recall / (precision + recall) if right else 0.0,
        'precision': precision,
        'recall': recall,
        'macro_f1': float(scores.f1[seen].mean()) if seen.any() else 0.0,
        'accuracy': accuracy(table),
    }
