"""What is needed of scikit-learn to measure a model by simple answers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError

MOST_FREQUENT, TFIDF = 'most frequent', 'TF-IDF'  # names of answers
_WORDS = r'(?u)\b\w+\b'
_MOST_FEATURES = 50_000  # words and pairs of neighbours, the most frequent ones
_NEVER = -50.0  # the logarithm of a probability of nothing
_RARE = 1000  # texts from which on what occurs once is left out


def vectorizer(texts: Sequence[str]) -> Any:
    """A TfidfVectorizer of words and pairs of neighbouring words, fitted to the texts.

    Raises:
      UserError: scikit-learn is not installed, or no text has a word.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ModuleNotFoundError:
        fix = "pip install 'bertjax[baseline]'"
        raise UserError('config.run=baseline', 'no scikit-learn', 'it, for TF-IDF and linear models', fix) from None
    fitted = TfidfVectorizer(
        token_pattern=_WORDS,
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2 if len(texts) >= _RARE else 1,
        max_features=_MOST_FEATURES,
        dtype=np.float32,
    )
    try:
        return fitted.fit(texts)
    except ValueError:
        raise UserError('config.data', 'no word in the training texts', 'texts', 'check the columns') from None


def class_logits(train: Any, targets: np.ndarray, inputs: Any, classes: int) -> np.ndarray:
    """What logistic regression says.

    Args:
      train: features [N, F] of scikit-learn.
      targets: int [N], below `classes`.
      inputs: features [M, F].
      classes: C.

    Returns:
      Logarithms of probabilities, float64 [M, C]; of a class that is not among the targets, of nothing.
    """
    from sklearn.linear_model import LogisticRegression

    logits = np.full((inputs.shape[0], classes), _NEVER)
    seen = np.unique(targets)
    if len(seen) == 1:
        logits[:, seen] = 0
    else:
        logits[:, seen] = LogisticRegression(max_iter=1000).fit(train, targets).predict_log_proba(inputs)
    return logits
