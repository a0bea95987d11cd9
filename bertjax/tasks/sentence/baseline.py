"""Baselines of text classification and regression: the most frequent label or the mean score, and a linear model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.tasks.baselines import MOST_FREQUENT, TFIDF, fit_class_logits, fit_vectorizer
from bertjax.tasks.sentence.labels import LabelledRecord

MEAN = 'mean'


def tfidf_features(train: Sequence[LabelledRecord], records: Sequence[LabelledRecord]) -> tuple[Any, Any]:
    """Returns the TF-IDF features of the N training records and of M other records, sparse float32 [N, F] and [M, F].

    The features of a pair are the features of both texts, the absolute difference of these features, and their cosine.
    The last two let a linear model compare the texts.
    """
    texts = [text for record in train for text in (record.first, record.second) if text is not None]
    vectors = fit_vectorizer(texts)
    return _inputs(vectors, train), _inputs(vectors, records)


def _inputs(vectors: Any, records: Sequence[LabelledRecord]) -> Any:
    from scipy import sparse

    first = vectors.transform([record.first for record in records])
    if records[0].second is None:
        return first
    second = vectors.transform([record.second for record in records])
    cosine = sparse.csr_matrix(first.multiply(second).sum(1))
    return sparse.hstack([first, second, abs(first - second), cosine], format='csr')


def class_baselines(
    train: Sequence[LabelledRecord], targets: np.ndarray, records: Sequence[LabelledRecord], classes: int
) -> dict[str, np.ndarray]:
    """Returns the logits of two baselines, the most frequent class and logistic regression on TF-IDF features.

    Args:
      train: The N training records.
      targets: The number of the label of each training record, int [N].
      records: The M records to predict.
      classes: The number of classes C.

    Returns:
      {name of a baseline: logits, float64 [M, C]}.
    """
    train_inputs, inputs = tfidf_features(train, records)
    counts = np.bincount(targets, minlength=classes)
    frequent = np.log(np.maximum(counts, 1e-4) / counts.sum())
    return {
        MOST_FREQUENT: np.tile(frequent, (len(records), 1)),
        TFIDF: fit_class_logits(train_inputs, targets, inputs, classes),
    }


def label_baselines(
    train: Sequence[LabelledRecord], targets: np.ndarray, records: Sequence[LabelledRecord]
) -> dict[str, np.ndarray]:
    """Returns the logits of two baselines for C independent labels: the label frequencies and logistic regression.

    Args:
      train, records: See `class_baselines`.
      targets: 1 for each label of a training record and 0 elsewhere, [N, C].

    Returns:
      {name of a baseline: logits of a sigmoid, float64 [M, C]}.
    """
    train_inputs, inputs = tfidf_features(train, records)
    share = np.clip(targets.mean(0), 1e-4, 1 - 1e-4)
    logits = [fit_class_logits(train_inputs, column.astype(int), inputs, 2) for column in targets.T]
    return {
        MOST_FREQUENT: np.tile(np.log(share / (1 - share)), (len(records), 1)),
        TFIDF: np.stack([label_logits[:, 1] - label_logits[:, 0] for label_logits in logits], axis=1),
    }


def score_baselines(
    train: Sequence[LabelledRecord], targets: np.ndarray, records: Sequence[LabelledRecord]
) -> dict[str, np.ndarray]:
    """Returns the scores of two baselines, the mean of the targets and ridge regression on TF-IDF features.

    Args:
      train, records: See `class_baselines`.
      targets: The scores of the training records, float [N].

    Returns:
      {name of a baseline: scores, float64 [M, 1]}.
    """
    from sklearn.linear_model import Ridge

    train_features, features = tfidf_features(train, records)
    return {
        MEAN: np.full((len(records), 1), targets.mean(), np.float64),
        TFIDF: Ridge().fit(train_features, targets).predict(features).astype(np.float64)[:, None],
    }
