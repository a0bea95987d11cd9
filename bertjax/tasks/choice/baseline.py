"""Baselines of multiple choice: the most frequent index, and the ending that is most similar to the prompt."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertjax.tasks.baselines import MOST_FREQUENT, fit_vectorizer
from bertjax.tasks.choice.files import ChoiceQuestion

OVERLAP = 'TF-IDF overlap'


def ending_scores(train: Sequence[ChoiceQuestion], records: Sequence[ChoiceQuestion]) -> dict[str, list[np.ndarray]]:
    """Returns the scores of each record's endings for two baselines.

    Args:
      train: The training records.
      records: The N records to predict.

    Returns:
      {name of a baseline: N arrays, float64 [C]}. For MOST_FREQUENT, the score of an ending is the number of training
      records whose correct ending has the same index. For OVERLAP, it is the cosine of the TF-IDF vectors of the ending
      and the prompt. The weights of TF-IDF are fitted to the training texts.
    """
    label_counts = Counter(question.label for question in train)
    vectors = fit_vectorizer([text for question in train for text in (_prompt(question), *question.endings)])
    prompts = vectors.transform([_prompt(question) for question in records])
    overlaps = []
    for row, question in enumerate(records):
        overlaps.append((vectors.transform(question.endings) @ prompts[row].T).toarray()[:, 0].astype(np.float64))
    frequent = [np.array([label_counts[i] for i in range(len(question.endings))], np.float64) for question in records]
    return {MOST_FREQUENT: frequent, OVERLAP: overlaps}


def _prompt(question: ChoiceQuestion) -> str:
    return f'{question.context} {question.start}'
