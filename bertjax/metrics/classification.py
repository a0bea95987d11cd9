"""Figures of classification and regression, equal to scikit-learn's and scipy's; None where undefined."""

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """How well each of C classes was predicted; all arrays are [C].

    Attributes:
      precision, recall, f1: float64; 0 where undefined, as in scikit-learn.
      true, predicted: int64, how often each class occurs, and how often it was predicted.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def confusion(true: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> np.ndarray:
    """int64 [C, C]: how often class i was predicted as class j.

    Args:
      true, predicted: ints [N], below `classes`.
      classes: C.
    """
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (np.asarray(true, np.int64), np.asarray(predicted, np.int64)), 1)
    return table


def class_scores(table: np.ndarray) -> ClassScores:
    """Precision, recall and F1 of each class, from a `confusion` table."""
    return scores_of_counts(table.diagonal(), table.sum(1), table.sum(0))


def scores_of_counts(right: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> ClassScores:
    """The scores of C classes, from int64 [C]: how often each was predicted rightly, occurs, and was predicted."""
    share = lambda part, whole: part / np.maximum(whole, 1)  # noqa: E731
    return ClassScores(share(right, predicted), share(right, true), share(2 * right, true + predicted), true, predicted)


def accuracy(table: np.ndarray) -> float | None:
    """Share on the diagonal of a `confusion` table."""
    total = table.sum()
    return float(table.trace() / total) if total else None


def binary_f1(table: np.ndarray) -> float | None:
    """F1 of class 1 of two."""
    return float(class_scores(table).f1[1]) if table.sum() else None


def macro_f1(table: np.ndarray) -> float | None:
    """Mean F1 of the classes that occur or were predicted (as scikit-learn without `labels`)."""
    scores = class_scores(table)
    seen = (scores.true + scores.predicted) > 0
    return float(scores.f1[seen].mean()) if seen.any() else None


def matthews(table: np.ndarray) -> float | None:
    """Matthews' correlation, for more than two classes R_K (Gorodkin 2004); 0 if either side has only one class."""
    table = table.astype(np.float64)  # products of counts would overflow int64 from 3e9 records
    total, true, predicted = table.sum(), table.sum(1), table.sum(0)
    if not total:
        return None
    covariance = table.trace() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Correlation of two float arrays [N]; None for fewer than two values, a non-finite one, or a constant side."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) < 2 or not np.isfinite([x, y]).all() or (x == x[0]).all() or (y == y[0]).all():
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Correlation of the ranks of two float arrays [N]; see `pearson`."""
    return pearson(ranks(x), ranks(y)) if np.isfinite([x, y]).all() else None


def ranks(x: npt.ArrayLike) -> np.ndarray:
    """float64 [N]: 1 for the smallest value; equal values get the mean of their ranks."""
    _, place, count = np.unique(np.asarray(x, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[place]


def mean_squared_error(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Of two float arrays [N]; None for no values, or a non-finite one."""
    error = np.asarray(x, np.float64) - np.asarray(y, np.float64)
    return float(np.square(error).mean()) if len(error) and np.isfinite(error).all() else None


# The figures of a task: functions of a confusion table, and of true and predicted values.
OF_CLASSES = {'accuracy': accuracy, 'f1': binary_f1, 'macro_f1': macro_f1, 'matthews': matthews}
OF_VALUES = {'spearman': spearman, 'pearson': pearson, 'mse': mean_squared_error}
