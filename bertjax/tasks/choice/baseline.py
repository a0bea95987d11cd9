"""Simple answers to multiple choice: the most frequent number, and the ending with the words of the context."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertjax.tasks.baselines import MOST_FREQUENT, vectorizer
from bertjax.tasks.choice.files import ChoiceQuestion

OVERLAP = 'TF-IDF overlap'


def ending_scores(train: Sequence[ChoiceQuestion], records: Sequence[ChoiceQuestion]) -> dict[str, list[np.ndarray]]:
    """{name: a score for each ending of each record}: how often its number was right; the cosine of the TF-IDF of
    the ending and of what stands before it, with weights from the training texts."""
    right = Counter(question.label for question in train)
    fitted = vectorizer([text for question in train for text in (_before(question), *question.endings)])
    before = fitted.transform([_before(question) for question in records])
    overlaps = []
    for row, question in enumerate(records):
        overlaps.append((fitted.transform(question.endings) @ before[row].T).toarray()[:, 0].astype(np.float64))
    frequent = [np.array([right[i] for i in range(len(question.endings))], np.float64) for question in records]
    return {MOST_FREQUENT: frequent, OVERLAP: overlaps}


def _before(question: ChoiceQuestion) -> str:
    return f'{question.context} {question.start}'
