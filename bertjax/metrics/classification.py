"""Metrics of classification and regression, as in scikit-learn and scipy, for one or more records."""

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """The scores of C classes, as arrays [C], or of a single class, as numbers.

    Attributes:
      precision, recall, f1: float64; 0 if undefined, as in scikit-learn, conlleval and seqeval.
      right: int64, the number of correct predictions of each class.
      true: int64, the number of records of each class.
      predicted: int64, the number of records for which each class was predicted.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    right: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def confusion(true: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> np.ndarray:
    """Returns the confusion table, int64 [C, C]. Entry [i, j] counts the records of class i predicted as class j.

    `true` and `predicted` are class indices, int [N], below C = `classes`.
    """
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (np.asarray(true, np.int64), np.asarray(predicted, np.int64)), 1)
    return table


def class_scores(table: np.ndarray) -> ClassScores:
    """Returns the scores of each class from a `confusion` table."""
    return scores_from_counts(table.diagonal(), table.sum(1), table.sum(0))


def scores_from_counts(right: npt.ArrayLike, true: npt.ArrayLike, predicted: npt.ArrayLike) -> ClassScores:
    """Returns the scores of C classes from their numbers of correct, true and predicted records, int64 [C] or int."""
    share = lambda part, total: part / np.maximum(total, 1)  # noqa: E731
    f1 = share(2 * right, true + predicted)
    return ClassScores(share(right, predicted), share(right, true), f1, right, true, predicted)


def accuracy(table: np.ndarray) -> float:
    """Returns the accuracy of a `confusion` table."""
    return float(table.trace() / table.sum())


def binary_f1(table: np.ndarray) -> float:
    """Returns the F1 of class 1 from a `confusion` table of two classes."""
    return float(class_scores(table).f1[1])


def macro_f1(table: np.ndarray, classes: np.ndarray | bool = True) -> float:
    """Returns the mean F1 of the classes that occur or were predicted, as in scikit-learn without `labels`.

    `classes`, bool [C], selects the classes to average. If none of them occurs or was predicted, the result is 0.
    """
    scores = class_scores(table)
    seen = classes & ((scores.true + scores.predicted) > 0)
    return float(scores.f1[seen].mean()) if seen.any() else 0.0


def matthews(table: np.ndarray) -> float:
    """Returns the Matthews correlation coefficient. For more than two classes, it is R_K of Gorodkin (2004).

    The result is 0 if all records have the same class, or if all predictions are equal.
    """
    table = table.astype(np.float64)  # with 1e5 records or more, a product of four counts could overflow int64
    total, true, predicted = table.sum(), table.sum(1), table.sum(0)
    covariance = table.trace() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the Pearson correlation of two arrays [N]; None if N < 2, or if one is constant or not finite."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) < 2 or not np.isfinite([x, y]).all() or (x == x[0]).all() or (y == y[0]).all():
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the Spearman correlation of two arrays [N], the `pearson` of their `ranks`; None if one is not finite."""
    return pearson(ranks(x), ranks(y)) if np.isfinite([x, y]).all() else None


def ranks(x: npt.ArrayLike) -> np.ndarray:
    """Returns the rank of each value, float64 [N]. The smallest has rank 1, and equal values share their mean rank."""
    _, group, count = np.unique(np.asarray(x, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[group]


def mean_squared_error(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the mean squared error of two float arrays [N], or None if a value is not finite."""
    error = np.asarray(x, np.float64) - np.asarray(y, np.float64)
    return float(np.square(error).mean()) if np.isfinite(error).all() else None


def label_scores(true: npt.ArrayLike, predicted: npt.ArrayLike) -> ClassScores:
    """Returns the scores of each label. `true` and `predicted` are bool [N, C] for N records and C labels."""
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    return scores_from_counts((true & predicted).sum(0), true.sum(0), predicted.sum(0))


def multi_label_figures(true: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Returns the MULTI_LABEL_METRICS, {name: value}.

    A micro average counts all decisions together. A macro average is the mean over the C labels. `exact` is the
    fraction of records whose labels are all correct. For the arguments, see `label_scores`.
    """
    true, predicted = np.asarray(true, bool), np.asarray(predicted, bool)
    by_label, total = label_scores(true, predicted), label_scores(true.reshape(-1, 1), predicted.reshape(-1, 1))
    names = ('f1', 'precision', 'recall')
    figures = {f'micro_{name}': float(getattr(total, name)[0]) for name in names}
    figures |= {f'macro_{name}': float(getattr(by_label, name).mean()) for name in names}
    figures['exact'] = float((true == predicted).all(1).mean())
    return {name: figures[name] for name in MULTI_LABEL_METRICS}


def relation_figures(table: np.ndarray, negative: int | None) -> dict[str, float]:
    """Returns micro_f1, precision, recall, macro_f1 and accuracy, in [0, 1].

    With a negative label, the other labels are positive. micro_f1, precision and recall are those of the positive
    labels, as in TACRED's scorer (utils/scorer.py in yuhaozhang/tacred-relation), and precision is 1 if no positive
    label is predicted. Without a negative label, these three metrics equal the accuracy. macro_f1 is the `macro_f1` of
    all labels except the negative label.

    Args:
      table: The confusion table, int64 [C, C], see `confusion`.
      negative: The index of the negative label, such as 'no_relation'; None if there is no such label.
    """
    positive = np.ones(len(table), bool)
    if negative is not None:
        positive[negative] = False
    right = int(table.diagonal()[positive].sum())
    guessed, gold = int(table.sum(0)[positive].sum()), int(table.sum(1)[positive].sum())
    precision = right / guessed if guessed else 1.0
    recall = right / gold if gold else 0.0
    return {
        'micro_f1': 2 * precision * recall / (precision + recall) if right else 0.0,
        'precision': precision,
        'recall': recall,
        'macro_f1': macro_f1(table, positive),
        'accuracy': accuracy(table),
    }


# Metrics by name: CLASS_METRICS take a confusion table, VALUE_METRICS take the true and the predicted values.
CLASS_METRICS = {'accuracy': accuracy, 'macro_f1': macro_f1, 'matthews': matthews, 'f1': binary_f1}
VALUE_METRICS = {'spearman': spearman, 'pearson': pearson, 'mse': mean_squared_error}
# Metrics of multi-label classification, with the same values as in scikit-learn with zero_division=0.
MULTI_LABEL_METRICS = (
    'micro_f1',
    'macro_f1',
    'micro_precision',
    'micro_recall',
    'macro_precision',
    'macro_recall',
    'exact',
)
