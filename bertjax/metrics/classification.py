"""Metrics of classification and regression, equal to those of scikit-learn and scipy; None if undefined."""

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """The scores of each of C classes; all arrays are [C].

    Attributes:
      precision, recall, f1: float64; 0 if undefined, as in scikit-learn.
      true, predicted: int64, the number of records of each class, and the number of its predictions.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def confusion(true: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> np.ndarray:
    """Returns the confusion table, int64 [C, C]: how often class i was predicted as class j.

    Args:
      true, predicted: ints [N], below `classes`.
      classes: C.
    """
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (np.asarray(true, np.int64), np.asarray(predicted, np.int64)), 1)
    return table


def class_scores(table: np.ndarray) -> ClassScores:
    """Returns precision, recall and F1 of each class from a `confusion` table."""
    return scores_from_counts(table.diagonal(), table.sum(1), table.sum(0))


def scores_from_counts(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> ClassScores:
    """Returns the scores of C classes from the numbers of correct, true and predicted records, int64 [C] each."""
    share = lambda part, total: part / np.maximum(total, 1)  # noqa: E731
    return ClassScores(share(right, predicted), share(right, true), share(2 * right, true + predicted), true, predicted)


def accuracy(table: np.ndarray) -> float | None:
    """Returns the accuracy of a `confusion` table."""
    total = table.sum()
    return float(table.trace() / total) if total else None


def binary_f1(table: np.ndarray) -> float | None:
    """Returns the F1 of class 1 of two classes."""
    return float(class_scores(table).f1[1]) if table.sum() else None


def macro_f1(table: np.ndarray) -> float | None:
    """Returns the mean F1 of the classes that occur or were predicted (like scikit-learn without `labels`)."""
    scores = class_scores(table)
    seen = (scores.true + scores.predicted) > 0
    return float(scores.f1[seen].mean()) if seen.any() else None


def matthews(table: np.ndarray) -> float | None:
    """Returns Matthews' correlation (R_K of Gorodkin 2004 for more classes); 0 if either side has only one class."""
    table = table.astype(np.float64)  # products of counts would overflow int64 from 3e9 records
    total, true, predicted = table.sum(), table.sum(1), table.sum(0)
    if not total:
        return None
    covariance = table.trace() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the correlation of two float arrays [N]; None for fewer than two, non-finite or constant values."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) < 2 or not np.isfinite([x, y]).all() or (x == x[0]).all() or (y == y[0]).all():
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the correlation of the ranks of two float arrays [N]; see `pearson`."""
    return pearson(ranks(x), ranks(y)) if np.isfinite([x, y]).all() else None


def ranks(x: npt.ArrayLike) -> np.ndarray:
    """Returns the rank of each value, float64 [N], from 1 for the smallest; equal values share the mean rank."""
    _, group, count = np.unique(np.asarray(x, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[group]


def mean_squared_error(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Returns the mean squared error of two float arrays [N]; None for no values or non-finite ones."""
    error = np.asarray(x, np.float64) - np.asarray(y, np.float64)
    return float(np.square(error).mean()) if len(error) and np.isfinite(error).all() else None


# The metrics of tasks: functions of a confusion table, and functions of true and predicted values.
OF_CLASSES = {'accuracy': accuracy, 'f1': binary_f1, 'macro_f1': macro_f1, 'matthews': matthews}
OF_VALUES = {'spearman': spearman, 'pearson': pearson, 'mse': mean_squared_error}
