"""More training rows out of those that there are: in each copy of a row some words have become others.

After TinyBERT (arXiv 1909.10351, algorithm 1; huawei-noah, TinyBERT/data_augmentation.py), whose masked language model
says what may stand in the place of a word of one piece, masked alone, and whose GloVe vectors say it of other words.
Here the chosen words of a copy are masked together, so that a copy costs one forward pass, and words of several pieces
stay: every piece keeps its place, and with it tags and spans.
"""

import dataclasses

import numpy as np

from bertjax.data.features import Features
from bertjax.data.hashing import Stream, below, uniform


def take_rows(features: Features, rows: np.ndarray) -> Features:
    """The rows of these numbers, int64 [N], in this order; one may come several times."""
    C = features.choices
    sequences = (rows[:, None] * C + np.arange(C)).reshape(-1)
    lengths = features.sequence_lengths[sequences]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.arange(offsets[-1]) + np.repeat(features.offsets[sequences] - offsets[:-1], lengths)
    return dataclasses.replace(
        features,
        tokens=features.tokens[at],
        offsets=offsets,
        second=features.second[sequences],
        record=features.record[rows],
        row={name: x[rows] for name, x in features.row.items()},
        token={name: x[at] for name, x in features.token.items()},
    )


def repeat_rows(features: Features, times: int, mark: str) -> Features:
    """Each row `times` times, one after the other; the new row array `mark`, float32, is 1 for the first."""
    rows = take_rows(features, np.repeat(np.arange(len(features)), times))
    first = (np.arange(len(rows)) % times == 0).astype(np.float32)
    return dataclasses.replace(rows, row={**rows.row, mark: first})


def find_single_piece_words(features: Features, special: np.ndarray, continues_word: np.ndarray) -> np.ndarray:
    """bool [T]: the token is a whole word.

    Args:
      features: of any rows.
      special: ids of special tokens.
      continues_word: bool [V], see text/tokenizer.py.
    """
    continues = np.append(continues_word[features.tokens], False)  # [T + 1]
    continues[features.offsets[:-1]] = False  # a sequence begins anew
    return ~(continues[:-1] | continues[1:] | np.isin(features.tokens, special))


def choose_words(features: Features, words: np.ndarray, *, seed: int, probability: float, mark: str) -> np.ndarray:
    """bool [T]: the tokens to become others, each of `words` with this probability, in copies alone: a function of
    (seed, n, place) for sequence n of what `repeat_rows` gives."""
    n, place = token_positions(features)
    copies = np.repeat(features.row[mark] == 0, features.choices)[n]
    return words & copies & (uniform(seed, Stream.AUGMENT, n, place) < probability)


def token_positions(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Of each token the sequence that it is in, and its place there: int64 [T] each."""
    n = np.repeat(np.arange(len(features.second)), features.sequence_lengths)
    return n, np.arange(len(features.tokens)) - features.offsets[n]


def choose_candidates(
    candidates: np.ndarray, was: np.ndarray, n: np.ndarray, place: np.ndarray, *, seed: int
) -> np.ndarray:
    """One of K candidates for each chosen word, never the word itself.

    Args:
      candidates: int32 [M, K + 1], different ids, the likeliest first.
      was: int32 [M], the words.
      n, place: int64 [M], where they stand.
      seed: of the draw.

    Returns:
      int32 [M].
    """
    K = candidates.shape[1] - 1
    other = candidates != was[:, None]
    other[:, K] &= ~other[:, :K].all(1)  # the last one stands in for the word itself
    order = np.argsort(~other, axis=1, kind='stable')  # those that are other words first
    drawn = below(K, seed, Stream.AUGMENT_WORD, n, place)
    return np.take_along_axis(candidates, np.take_along_axis(order, drawn[:, None], 1), 1)[:, 0]
