"""From the logits of windows to a tag for each word."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import Features
from bertjax.metrics.entities import to_iob2
from bertjax.metrics.softmax import softmax
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.features import WORDS


@dataclasses.dataclass(frozen=True)
class Tags:
    """The prediction for a sentence.

    Attributes:
      tags: of each word, in IOB2 or plain.
      probabilities: of each word's most probable tag.
      repaired: how many entities began with I in the model's output; in `tags` they begin with B.
    """

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    repaired: int = 0


def tags_of_words(
    sentences: Sequence[Sentence],
    features: Features,
    token_logits: Sequence[np.ndarray],
    labels: Sequence[str],
    *,
    plain: bool,
) -> list[Tags]:
    """The tags of each sentence.

    Args:
      sentences: N.
      features: of all their windows, R rows.
      token_logits: R arrays [S, C], each as long as its row.
      labels: C tags.
      plain: whether each tag stands for itself; else they are made IOB2.
    """
    best = [np.full(len(sentence.words), -1) for sentence in sentences]
    probability = [np.zeros(len(sentence.words)) for sentence in sentences]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        at = np.flatnonzero(words)
        logits = np.asarray(token_logits[row], np.float64)[at]  # [W, C]
        best[sentence][words[at] - 1] = logits.argmax(-1)
        probability[sentence][words[at] - 1] = softmax(logits).max(-1)
    return [_tags(*both, labels, plain=plain) for both in zip(best, probability, strict=True)]


def _tags(best: np.ndarray, probability: np.ndarray, labels: Sequence[str], *, plain: bool) -> Tags:
    if (best < 0).any():
        raise ValueError('a word without a prediction in any window')
    raw = [labels[i] for i in best]
    tags = raw if plain else to_iob2(raw)
    repaired = sum(a != b for a, b in zip(raw, tags, strict=True))
    return Tags(tuple(tags), tuple(probability.tolist()), repaired)
