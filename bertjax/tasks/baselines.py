"""Simple baselines with scikit-learn: TF-IDF features and logistic regression."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError

MOST_FREQUENT, TFIDF = 'most frequent', 'TF-IDF'  # names of baselines
_WORDS = r'(?u)\b\w+\b'
_MAX_FEATURES = 50_000  # the maximum number of words and word pairs; rarer terms are dropped
_LOG_ZERO = -50.0  # the value for the logarithm of probability 0
_MIN_DF_TEXTS = 1000  # with at least this many texts, a term must occur in two texts


def fit_vectorizer(texts: Sequence[str]) -> Any:
    """Fits a TfidfVectorizer on the words and word bigrams of the texts.

    Raises:
      UserError: scikit-learn is not installed, no text contains a word, or no two of many texts share a word.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ModuleNotFoundError:
        fix = "pip install 'bertjax[baseline]'"
        raise UserError(
            'config.run=baseline', 'no scikit-learn', 'scikit-learn, for TF-IDF and linear models', fix
        ) from None
    result = TfidfVectorizer(
        token_pattern=_WORDS,
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2 if len(texts) >= _MIN_DF_TEXTS else 1,
        max_features=_MAX_FEATURES,
        dtype=np.float32,
    )
    try:
        return result.fit(texts)
    except ValueError:
        found = 'no word in the training texts' if result.min_df == 1 else 'no word in two of the training texts'
        raise UserError('config.data', found, 'words', 'check the text columns') from None


def fit_class_logits(train: Any, targets: np.ndarray, inputs: Any, classes: int) -> np.ndarray:
    """Fits a logistic regression and returns its log-probabilities.

    Args:
      train: The training features [N, F], dense or sparse.
      targets: The class indices, int [N], each below `classes`.
      inputs: The features [M, F] of the records to predict.
      classes: The number of classes C.

    Returns:
      The log-probabilities, float64 [M, C]; -50 for a class that does not occur in `targets`.
    """
    from sklearn.linear_model import LogisticRegression

    logits = np.full((inputs.shape[0], classes), _LOG_ZERO)
    seen = np.unique(targets)
    if len(seen) == 1:
        logits[:, seen] = 0
    else:
        logits[:, seen] = LogisticRegression(max_iter=1000).fit(train, targets).predict_log_proba(inputs)
    return logits
