"""Exact match and F1 of SQuAD, as in the two official evaluation scripts.

The scripts are evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar.github.io/SQuAD-explorer. Only v2.0 drops gold
answers that are empty after normalization, and only v2.0 gives two empty answers an F1 of 1. The scripts print
percentages; the values of this module are in [0, 1].
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

_ARTICLE = re.compile(r'\b(?:a|an|the)\b')
_NO_PUNCTUATION = str.maketrans('', '', string.punctuation)

Gold = Sequence[Sequence[str]]  # the annotators' answers to each question; none if it is unanswerable


def normalize(text: str) -> str:
    """Returns the words of an answer in lower case, without ASCII punctuation or English articles."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return ' '.join(_ARTICLE.sub(' ', text).split())


def overlap_f1(gold: str, answer: str, *, empty_equal: bool) -> float:
    """Returns the F1 of the two bags of normalized words.

    The F1 of two texts without words is 1 if `empty_equal` is True (as in v2.0), else 0 (as in v1.1).
    """
    gold_words, answer_words = normalize(gold).split(), normalize(answer).split()
    if not gold_words or not answer_words:
        return float(empty_equal and gold_words == answer_words)
    common = (collections.Counter(gold_words) & collections.Counter(answer_words)).total()
    if not common:
        return 0.0
    # The operations are in the order of the official scripts, so the results are bitwise equal.
    precision, recall = common / len(answer_words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def score_answer(gold: Sequence[str], answer: str, *, v2: bool) -> tuple[float, float]:
    """Returns the exact match (0 or 1) and the F1 of an answer, each the maximum over the gold answers."""
    if v2:
        gold = [text for text in gold if normalize(text)] or ['']
    exact = any(normalize(text) == normalize(answer) for text in gold)
    return float(exact), max(overlap_f1(text, answer, empty_equal=v2) for text in gold)


def evaluate_v1(gold: Gold, answers: Sequence[str]) -> dict[str, float]:
    """Returns `exact` and `f1` of SQuAD 1.1, where each question has a gold answer. `answers` are the predictions."""
    scores = [score_answer(*pair, v2=False) for pair in zip(gold, answers, strict=True)]
    exact, f1 = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    return {'exact': exact, 'f1': f1}


class Evaluation:
    """The scores of all predicted answers of SQuAD 2.0, and the metrics computed from them.

    `answers` has the predicted answer to each of N questions; '' for no answer.
    """

    def __init__(self, gold: Gold, answers: Sequence[str]):
        self._answerable, self._answered = np.array(list(map(bool, gold))), np.array(list(map(bool, answers)))
        scores = [score_answer(*pair, v2=True) for pair in zip(gold, answers, strict=True)]
        self._exact, self._f1 = np.array(scores).T

    def figures(self) -> dict[str, float | None]:
        """Returns `exact` and `f1` of all questions, of answerable ones (HasAns_) and of unanswerable ones (NoAns_).

        The metrics of a group without questions are None.
        """
        figures: dict[str, float | None] = {}
        groups = (('', slice(None)), ('HasAns_', self._answerable), ('NoAns_', ~self._answerable))
        for prefix, group in groups:
            for name, scores in (('exact', self._exact[group]), ('f1', self._f1[group])):
                figures[prefix + name] = sum(scores.tolist()) / len(scores) if len(scores) else None
        return figures

    def best(self, null_odds: Sequence[float]) -> dict[str, float]:
        """Returns best_exact and best_f1 over all thresholds, and the best thresholds (with the suffix _thresh).

        A question is answered if its null odds, on any scale, are at most the threshold. The `answers` of this object
        must be the best non-empty texts. A threshold is 0 if answering no question is best, as in the official script.
        """
        figures: dict[str, float] = {}
        for name, scores in (('exact', self._exact), ('f1', self._f1)):
            best, threshold = self._search(scores, null_odds)
            figures |= {f'best_{name}': best, f'best_{name}_thresh': 0.0 if threshold is None else threshold}
        return figures

    def best_threshold(self, null_odds: Sequence[float]) -> float:
        """Returns the threshold with the best F1, or a value below all odds if answering no question is best."""
        threshold = self._search(self._f1, null_odds)[1]
        return min(null_odds) - 1.0 if threshold is None else threshold

    def _search(self, scores: np.ndarray, null_odds: Sequence[float]) -> tuple[float, float | None]:
        """Returns the best mean score and its threshold, or None for the threshold if answering no question is best.

        Starting with no answer, the search adds the answers in ascending order of their null odds.
        """
        order = np.argsort(null_odds, kind='stable')
        gain = np.where(self._answerable, scores, -self._answered.astype(float))[order]
        all_empty = float((~self._answerable).sum())
        sums = np.cumsum(np.concatenate([[all_empty], gain]))  # adds in the order of the official script
        best = int(np.argmax(sums))
        return float(sums[best]) / len(scores), float(null_odds[order[best - 1]]) if best else None
