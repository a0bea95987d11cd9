"""Predicts a tag for each word from the logits of windows."""

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
      tags: the tag of each word, in IOB2 or plain.
      probabilities: the probability of the most probable tag of each word.
      repaired: the number of entities that begin with I in the output of the model; in `tags` they begin with B.
    """

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    repaired: int = 0


def gather_word_logits(
    sentences: Sequence[Sentence], features: Features, token_logits: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the logits of the words of each sentence, float64 [W, C].

    Args:
      sentences: The N sentences.
      features: The features of the sentences, with R rows.
      token_logits: R arrays [S, C], each as long as its row.
    """
    tags = token_logits[0].shape[-1]
    logits = [np.full((len(sentence.words), tags), np.nan) for sentence in sentences]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        positions = np.flatnonzero(words)
        logits[sentence][words[positions] - 1] = np.asarray(token_logits[row], np.float64)[positions]
    return logits


def predict_tags(logits: Sequence[np.ndarray], labels: Sequence[str], *, plain: bool) -> list[Tags]:
    """Returns the predicted tags of each sentence.

    Args:
      logits: The logits of the words of each sentence, float64 [W, C].
      labels: The C tags.
      plain: Whether tags are independent. If not, invalid tags are converted to valid IOB2.
    """
    result = []
    for word_logits in logits:
        if np.isnan(word_logits).any():
            raise ValueError('a word without a prediction in any window')
        prediction = make_prediction([labels[i] for i in word_logits.argmax(-1)], plain=plain)
        probabilities = tuple(softmax(word_logits).max(-1).tolist())
        result.append(dataclasses.replace(prediction, probabilities=probabilities))
    return result


def make_prediction(raw: Sequence[str], *, plain: bool) -> Tags:
    """Returns the prediction for the output tags `raw`, with probability 1 for each tag; see `predict_tags`."""
    tags = raw if plain else to_iob2(raw)
    repaired = sum(a != b for a, b in zip(raw, tags, strict=True))
    return Tags(tuple(tags), (1.0,) * len(tags), repaired)
