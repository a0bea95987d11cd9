"""Simple answers to a classification or regression of texts: the most frequent one, and TF-IDF in a linear model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.tasks.baselines import MOST_FREQUENT, TFIDF, class_logits, vectorizer
from bertjax.tasks.sentence.labels import Labelled

MEAN = 'mean'


def text_inputs(train: Sequence[Labelled], records: Sequence[Labelled]) -> tuple[Any, Any]:
    """TF-IDF of the training records and of others, sparse float32 [N, F] each.

    Of a pair both texts side by side, the absolute difference and their cosine: what a linear model can compare.
    """
    texts = [text for record in train for text in (record.first, record.second) if text is not None]
    fitted = vectorizer(texts)
    return _inputs(fitted, train), _inputs(fitted, records)


def _inputs(fitted: Any, records: Sequence[Labelled]) -> Any:
    from scipy import sparse

    first = fitted.transform([record.first for record in records])
    if records[0].second is None:
        return first
    second = fitted.transform([record.second for record in records])
    cosine = sparse.csr_matrix(first.multiply(second).sum(1))
    return sparse.hstack([first, second, abs(first - second), cosine], format='csr')


def class_answers(
    train: Sequence[Labelled], targets: np.ndarray, records: Sequence[Labelled], classes: int
) -> dict[str, np.ndarray]:
    """{name: logits, float64 [M, C]} of the most frequent class, and of logistic regression on TF-IDF.

    Args:
      train: N records.
      targets: int [N], the number of the label of each.
      records: M others.
      classes: C.
    """
    counts = np.bincount(targets, minlength=classes)
    frequent = np.log(np.maximum(counts, 1e-4) / counts.sum())
    return {
        MOST_FREQUENT: np.tile(frequent, (len(records), 1)),
        TFIDF: class_logits(*_with(targets, text_inputs(train, records)), classes),
    }


def label_answers(train: Sequence[Labelled], targets: np.ndarray, records: Sequence[Labelled]) -> dict[str, np.ndarray]:
    """The same where each of C labels is a decision of its own; targets are 0 or 1 [N, C], logits of a sigmoid."""
    inputs = text_inputs(train, records)
    share = np.clip(targets.mean(0), 1e-4, 1 - 1e-4)
    logits = [class_logits(*_with(column.astype(int), inputs), 2) for column in targets.T]
    return {
        MOST_FREQUENT: np.tile(np.log(share / (1 - share)), (len(records), 1)),
        TFIDF: np.stack([each[:, 1] - each[:, 0] for each in logits], axis=1),
    }


def score_answers(train: Sequence[Labelled], targets: np.ndarray, records: Sequence[Labelled]) -> dict[str, np.ndarray]:
    """{name: scores, float64 [M, 1]} of the mean of the N targets, and of ridge regression on TF-IDF."""
    from sklearn.linear_model import Ridge

    inputs, others = text_inputs(train, records)
    return {
        MEAN: np.full((len(records), 1), targets.mean(), np.float64),
        TFIDF: Ridge().fit(inputs, targets).predict(others).astype(np.float64)[:, None],
    }


def _with(targets: np.ndarray, inputs: tuple[Any, Any]) -> tuple[Any, np.ndarray, Any]:
    return inputs[0], targets, inputs[1]
