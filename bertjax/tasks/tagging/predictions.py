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


def logits_of_words(
    sentences: Sequence[Sentence], features: Features, token_logits: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The logits of the words of each sentence, float64 [W, C].

    Args:
      sentences: N.
      features: of all their windows, R rows.
      token_logits: R arrays [S, C], each as long as its row.
    """
    tags = token_logits[0].shape[-1]
    found = [np.full((len(sentence.words), tags), np.nan) for sentence in sentences]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        at = np.flatnonzero(words)
        found[sentence][words[at] - 1] = np.asarray(token_logits[row], np.float64)[at]
    return found


def tags_of_words(logits: Sequence[np.ndarray], labels: Sequence[str], *, plain: bool) -> list[Tags]:
    """The tags of each sentence.

    Args:
      logits: of the words of each, float64 [W, C].
      labels: C tags.
      plain: whether each tag stands for itself; else they are made IOB2.
    """
    return [_tags(of_words, labels, plain=plain) for of_words in logits]


def _tags(logits: np.ndarray, labels: Sequence[str], *, plain: bool) -> Tags:
    if not (logits == logits).all():
        raise ValueError('a word without a prediction in any window')
    found = certain_tags([labels[i] for i in logits.argmax(-1)], plain=plain)
    return dataclasses.replace(found, probabilities=tuple(softmax(logits).max(-1).tolist()))


def certain_tags(raw: Sequence[str], *, plain: bool) -> Tags:
    """The prediction of given tags, with probability 1; see `tags_of_words`."""
    tags = raw if plain else to_iob2(raw)
    repaired = sum(a != b for a, b in zip(raw, tags, strict=True))
    return Tags(tuple(tags), (1.0,) * len(tags), repaired)
