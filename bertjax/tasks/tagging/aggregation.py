"""From the logits of pieces to those of words, by the aggregation strategies of transformers' token-classification
pipeline."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import Features
from bertjax.metrics.softmax import softmax
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.features import WORDS, piece_offsets
from bertjax.text.tokenizer import Tokenizer

# 'first': a word has the tag of its first piece, which is what a model is trained for here; 'average': that of the mean
# of its pieces' probabilities; 'max': of the piece with the highest probability; 'simple': each piece has its own.
STRATEGIES = ('first', 'average', 'max', 'simple')


def aggregated(
    sentences: Sequence[Sentence],
    features: Features,
    token_logits: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    strategy: str,
) -> tuple[list[Sentence], list[np.ndarray]]:
    """The sentences, and the logits of their words, float64 [W, C] each. With 'simple' each piece becomes a word.

    Args:
      sentences: N; of raw text where the strategy is 'simple'.
      features: of all their windows, R rows.
      token_logits: R arrays [S, C], each as long as its row.
      tokenizer: that made the features.
      strategy: one of STRATEGIES.
    """
    offsets = [piece_offsets(sentence.words, tokenizer) for sentence in sentences]
    pieces = _logits_of_pieces(features, token_logits, offsets)
    if strategy != 'simple':
        return list(sentences), [np.stack([_word(x, strategy) for x in words]) for words in pieces]
    logits = [np.concatenate(words) for words in pieces]
    each = zip(sentences, offsets, pieces, strict=True)
    return [_of_pieces(sentence, places, [len(x) for x in words]) for sentence, places, words in each], logits


def _logits_of_pieces(
    features: Features, token_logits: Sequence[np.ndarray], offsets: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    """Of each sentence and word the logits [P, C] of its pieces, as far as the window that tags the word reaches."""
    found: list[list[np.ndarray]] = [[np.zeros(0)] * len(words) for words in offsets]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        for at in np.flatnonzero(words).tolist():
            word = int(words[at]) - 1
            end = min(at + len(offsets[sentence][word]), len(words) - 1)  # the last is [SEP]
            found[sentence][word] = np.asarray(token_logits[row][at:end], np.float64)
    return found


def _word(logits: np.ndarray, strategy: str) -> np.ndarray:
    """[P, C] -> [C]."""
    if strategy == 'average':
        return np.log(softmax(logits).mean(0))
    return logits[0 if strategy == 'first' else softmax(logits).max(-1).argmax()]


def _of_pieces(sentence: Sentence, places: Sequence[np.ndarray], counts: Sequence[int]) -> Sentence:
    """The sentence with its pieces in place of its words."""
    offsets = tuple(
        (begin + int(first), begin + int(end))
        for (begin, _), pieces, count in zip(sentence.offsets, places, counts, strict=True)
        for first, end in pieces[:count]
    )
    words = tuple(sentence.text[slice(*place)] for place in offsets)
    return dataclasses.replace(sentence, words=words, offsets=offsets)
