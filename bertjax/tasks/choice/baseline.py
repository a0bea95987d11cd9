"""Baselines of multiple choice: the most frequent number, and the ending that shares most words with the context."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertjax.tasks.baselines import MOST_FREQUENT, fit_vectorizer
from bertjax.tasks.choice.files import ChoiceQuestion

OVERLAP = 'TF-IDF overlap'


def ending_scores(train: Sequence[ChoiceQuestion], records: Sequence[ChoiceQuestion]) -> dict[str, list[np.ndarray]]:
    """Returns {name of a baseline: the scores of the endings of each record}.

    The scores of the first are the counts of the right number in the training records. Those of the second are the
    cosines of the TF-IDF vectors of the ending and of the text before it, with weights from the training texts.
    """
    right = Counter(question.label for question in train)
    vectors = fit_vectorizer([text for question in train for text in (_text_before(question), *question.endings)])
    before = vectors.transform([_text_before(question) for question in records])
    overlaps = []
    for row, question in enumerate(records):
        overlaps.append((vectors.transform(question.endings) @ before[row].T).toarray()[:, 0].astype(np.float64))
    frequent = [np.array([right[i] for i in range(len(question.endings))], np.float64) for question in records]
    return {MOST_FREQUENT: frequent, OVERLAP: overlaps}


def _text_before(question: ChoiceQuestion) -> str:
    return f'{question.context} {question.start}'
