"""Metrics of relation classification: F1 over all labels except the negative one, which means no relation."""

import numpy as np

from bertjax.metrics.classification import accuracy, class_scores


def relation_figures(table: np.ndarray, negative: int | None) -> dict[str, float | None]:
    """Returns micro_f1, precision, recall, macro_f1 and accuracy, each in [0, 1]; None without records.

    With a negative label, micro_f1, precision and recall are those of TACRED's scorer (yuhaozhang/tacred-relation,
    utils/scorer.py): they count only relations that are predicted, or true, with another label. Precision is 1 if no
    relation was predicted. Without a negative label they all equal the accuracy, like any micro average. macro_f1 is
    scikit-learn's mean over the labels, except the negative one, that occur or were predicted.

    Args:
      table: int64 [C, C], see `classification.confusion`.
      negative: The index of the negative label; None if there is none.
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
