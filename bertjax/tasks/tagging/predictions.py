"""Predicts a tag for each word, or for each piece, from the logits of the rows."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.features import Features
from bertjax.metrics.entities import to_iob2
from bertjax.metrics.softmax import softmax
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.features import WORDS, piece_offsets
from bertjax.text.tokenizer import Tokenizer

# Strategies for selecting the tag of a word, as in the token-classification pipeline of transformers:
# 'first': the tag of the first piece, as in training.
# 'average': the tag with the highest mean probability over the pieces.
# 'max': the tag of the most confident piece.
# 'simple': each piece has its own tag.
STRATEGIES = ('first', 'average', 'max', 'simple')


@dataclasses.dataclass(frozen=True)
class Tags:
    """The prediction for a sentence: the tag of each word, in IOB2 or plain, and the probability of the tag."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


def gather_word_logits(
    sentences: Sequence[Sentence], features: Features, token_logits: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the logits of the W words of each sentence, float64 [W, C].

    `token_logits` has the logits of each row, [S, C]. A word has the logits of its first piece.
    """
    tags = token_logits[0].shape[-1]
    logits = [np.zeros((len(sentence.words), tags)) for sentence in sentences]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        positions = np.flatnonzero(words)
        logits[sentence][words[positions] - 1] = np.asarray(token_logits[row], np.float64)[positions]
    return logits


def predict_tags(logits: Sequence[np.ndarray], labels: Sequence[str], *, plain: bool) -> list[Tags]:
    """Predicts the tags of each sentence from word logits, float64 [W, C]. The tags are valid IOB2 unless `plain`."""
    result = []
    for word_logits in logits:
        tags = [labels[i] for i in word_logits.argmax(-1)]
        probabilities = softmax(word_logits).max(-1).tolist()
        result.append(Tags(tuple(tags if plain else to_iob2(tags)), tuple(probabilities)))
    return result


def aggregate(
    sentences: Sequence[Sentence],
    features: Features,
    token_logits: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    strategy: str,
) -> tuple[list[Sentence], list[np.ndarray]]:
    """Computes the logits of each word from the logits of its pieces by one of STRATEGIES.

    `token_logits` has an array [S, C] for each row of the features. With 'simple', the sentences must have a `text`.

    Returns:
      The sentences and the logits of their words, float64 [W, C]. With 'simple', the words are pieces with text.
    """
    offsets = [piece_offsets(sentence.words, tokenizer) for sentence in sentences]
    pieces = _gather_piece_logits(features, token_logits, offsets)
    if strategy != 'simple':
        return list(sentences), [np.stack([_word_logits(x, strategy) for x in words]) for words in pieces]
    triples = zip(sentences, offsets, pieces, strict=True)
    split, logits = zip(*(_split_into_pieces(*triple) for triple in triples), strict=True)
    return list(split), list(logits)


def _gather_piece_logits(
    features: Features, token_logits: Sequence[np.ndarray], offsets: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    """Returns the logits of the P pieces of each word, [P, C], by sentence and word.

    If the window that tags a word ends inside the word, the pieces after the end are missing.
    """
    logits: list[list[np.ndarray]] = [[np.zeros(0)] * len(words) for words in offsets]
    for row, sentence in enumerate(features.record.tolist()):
        words = features.token[WORDS][features.offsets[row] : features.offsets[row + 1]]
        for start in np.flatnonzero(words).tolist():
            word = int(words[start]) - 1
            end = min(start + len(offsets[sentence][word]), len(words) - 1)  # the last token is [SEP]
            logits[sentence][word] = np.asarray(token_logits[row][start:end], np.float64)
    return logits


def _word_logits(logits: np.ndarray, strategy: str) -> np.ndarray:
    """Combines the logits of the pieces of a word, [P, C] -> [C]."""
    if strategy == 'average':
        return np.log(softmax(logits).mean(0))
    return logits[0 if strategy == 'first' else softmax(logits).max(-1).argmax()]


def _split_into_pieces(
    sentence: Sentence, word_offsets: Sequence[np.ndarray], logits: Sequence[np.ndarray]
) -> tuple[Sentence, np.ndarray]:
    """Returns the sentence with its pieces as words, and their logits. Pieces without logits or text are dropped."""
    offsets: list[tuple[int, int]] = []
    kept = []
    for (begin, _), spans, piece_logits in zip(sentence.offsets, word_offsets, logits, strict=True):
        rows = np.flatnonzero(spans[:, 0] < spans[:, 1])
        spans = begin + spans[rows]
        rows[:1] = 0  # In training, the first piece has the tag of the word, even if this piece is only a space.
        rows = rows[rows < len(piece_logits)]
        offsets += map(tuple, spans[: len(rows)].tolist())
        kept.append(piece_logits[rows])
    words = tuple(sentence.text[slice(*bounds)] for bounds in offsets)
    return dataclasses.replace(sentence, words=words, offsets=tuple(offsets)), np.concatenate(kept)
