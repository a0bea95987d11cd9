"""Simple baselines: the most frequent answers, and scikit-learn models on TF-IDF features.

The functions `*_baselines` return {name of a baseline: outputs for the records}.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.sentence.labels import LabeledRecord
from bertjax.tasks.tagging.columns import Sentence

MEAN, MOST_FREQUENT, TFIDF, OVERLAP = 'mean', 'most frequent', 'TF-IDF', 'TF-IDF overlap'
MOST_FREQUENT_OF_WORD = 'most frequent of the word'
_WORDS = r'(?u)\b\w+\b'
_MAX_FEATURES = 50_000  # the maximum number of words and bigrams; rarer terms are dropped
_LOG_ZERO = -50.0  # replaces the logarithm of probability 0
_MIN_DF_TEXTS = 1000  # with at least this many texts, a term must occur in at least two texts


def class_baselines(
    train: Sequence[LabeledRecord], targets: np.ndarray, records: Sequence[LabeledRecord], classes: int
) -> dict[str, np.ndarray]:
    """Returns the logits, float64 [M, C], from the class frequencies and from logistic regression on TF-IDF features.

    `targets`, int [N], has the index of each training record's class. M is the number of `records`.
    """
    train_inputs, inputs = tfidf_features(train, records)
    counts = np.bincount(targets, minlength=classes)
    frequent = np.log(np.maximum(counts, 1e-4) / counts.sum())
    return {
        MOST_FREQUENT: np.tile(frequent, (len(records), 1)),
        TFIDF: _fit_class_logits(train_inputs, targets, inputs, classes),
    }


def label_baselines(
    train: Sequence[LabeledRecord], targets: np.ndarray, records: Sequence[LabeledRecord]
) -> dict[str, np.ndarray]:
    """Returns sigmoid logits, float64 [M, C], from the label frequencies and from logistic regression.

    The arguments are as in `class_baselines`, but the targets are [N, C]: 1 if a record has the label, else 0.
    """
    train_inputs, inputs = tfidf_features(train, records)
    share = np.clip(targets.mean(0, np.float64), 1e-4, 1 - 1e-4)
    logits = [_fit_class_logits(train_inputs, column.astype(int), inputs, 2) for column in targets.T]
    return {
        MOST_FREQUENT: np.tile(np.log(share / (1 - share)), (len(records), 1)),
        TFIDF: np.stack([label_logits[:, 1] - label_logits[:, 0] for label_logits in logits], axis=1),
    }


def score_baselines(
    train: Sequence[LabeledRecord], targets: np.ndarray, records: Sequence[LabeledRecord]
) -> dict[str, np.ndarray]:
    """Returns scores, float64 [M, 1], from the mean of the targets [N] and from ridge regression on TF-IDF features."""
    train_inputs, inputs = tfidf_features(train, records)

    from sklearn.linear_model import Ridge

    return {
        MEAN: np.full((len(records), 1), targets.mean(), np.float64),
        TFIDF: Ridge().fit(train_inputs, targets).predict(inputs).astype(np.float64)[:, None],
    }


def ending_baselines(train: Sequence[ChoiceQuestion], records: Sequence[ChoiceQuestion]) -> dict[str, list[np.ndarray]]:
    """Returns the scores of each record's C endings, float64 [C].

    For MOST_FREQUENT, the score of an ending is the number of training records whose correct ending has the same index.
    For OVERLAP, the score is the cosine between the TF-IDF vectors of the ending and of the text before it.
    """
    prompt = lambda question: f'{question.context} {question.start}'  # noqa: E731
    label_counts = Counter(question.label for question in train)
    vectors = _fit_vectorizer([text for question in train for text in (prompt(question), *question.endings)])
    prompts = vectors.transform(map(prompt, records))
    overlaps = []
    for row, question in enumerate(records):
        overlaps.append((vectors.transform(question.endings) @ prompts[row].T).toarray()[:, 0].astype(np.float64))
    frequent = [np.array([label_counts[i] for i in range(len(question.endings))], np.float64) for question in records]
    return {MOST_FREQUENT: frequent, OVERLAP: overlaps}


def tag_baselines(train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[list[str]]]:
    """Returns the predicted tags of each record.

    MOST_FREQUENT is the most frequent tag in `train`. MOST_FREQUENT_OF_WORD is the most frequent tag of the word; for
    a word that `train` lacks, it is the tag of MOST_FREQUENT. If tags are equally frequent, the first in alphabetical
    order is used. The baseline of CoNLL-2003 is similar, but looks up complete entities instead of words.
    """
    total: Counter[str] = Counter()
    by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        total.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    most_frequent = lambda counts: min(counts, key=lambda tag: (-counts[tag], tag))  # noqa: E731
    default = most_frequent(total)
    word_tag = {word: most_frequent(counts) for word, counts in by_word.items()}
    return {
        MOST_FREQUENT: [[default] * len(sentence.words) for sentence in records],
        MOST_FREQUENT_OF_WORD: [[word_tag.get(word, default) for word in sentence.words] for sentence in records],
    }


def tfidf_features(train: Sequence[LabeledRecord], records: Sequence[LabeledRecord]) -> tuple[Any, Any]:
    """Returns F TF-IDF features of each record, sparse float32: [N, F] for `train`, and [M, F] for `records`.

    The features of a pair are the features of both texts, the absolute difference of these features, and their cosine.
    The difference and the cosine let a linear model compare the texts.
    """
    vectors = _fit_vectorizer([text for record in train for text in (record.first, record.second) if text is not None])
    return _inputs(vectors, train), _inputs(vectors, records)


def _inputs(vectors: Any, records: Sequence[LabeledRecord]) -> Any:
    from scipy import sparse

    first = vectors.transform([record.first for record in records])
    if records[0].second is None:
        return first
    second = vectors.transform([record.second for record in records])
    cosine = sparse.csr_matrix(first.multiply(second).sum(1))
    return sparse.hstack([first, second, abs(first - second), cosine], format='csr')


def _fit_vectorizer(texts: Sequence[str]) -> Any:
    """Fits a TfidfVectorizer on the words and word bigrams of the texts.

    Raises:
      UserError: scikit-learn is not installed, or no term is frequent enough.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ModuleNotFoundError:
        expected, fix = 'scikit-learn, for TF-IDF and linear models', "pip install 'bertjax[baseline]'"
        raise UserError('config.run=baseline', 'no scikit-learn', expected, fix) from None
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
        found = 'no word in the training texts' if result.min_df == 1 else 'no word that occurs in two training texts'
        raise UserError('config.data', found, 'words', 'check the text columns') from None


def _fit_class_logits(train: Any, targets: np.ndarray, inputs: Any, classes: int) -> np.ndarray:
    """Fits a logistic regression. Returns log-probabilities, float64 [M, C]; -50 for a class not in `targets`."""
    from sklearn.linear_model import LogisticRegression

    logits = np.full((inputs.shape[0], classes), _LOG_ZERO)
    seen = np.unique(targets)
    if len(seen) == 1:
        logits[:, seen] = 0
    else:
        logits[:, seen] = LogisticRegression(max_iter=1000).fit(train, targets).predict_log_proba(inputs)
    return logits
