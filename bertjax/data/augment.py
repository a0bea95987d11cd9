"""Data augmentation: copies of training rows in which some words are replaced.

The method follows TinyBERT (arXiv 1909.10351, algorithm 1; huawei-noah, TinyBERT/data_augmentation.py). TinyBERT masks
one word at a time. Its candidates come from a masked language model, or from GloVe vectors for words of several pieces.
bertjax instead masks all chosen words of a copy together, so a copy costs one forward pass. It never replaces words of
several pieces, so all pieces keep their positions, and tags and spans stay valid.
"""

import dataclasses

import numpy as np

from bertjax.data.features import Features
from bertjax.data.hashing import Stream, randint, uniform


def repeat_rows(features: Features, times: int, mark: str) -> Features:
    """Repeats each row `times` times. Adds a row array named `mark`, float32: 1 for the first copy of a row, else 0."""
    rows = features.take(np.repeat(np.arange(len(features)), times))
    first = (np.arange(len(rows)) % times == 0).astype(np.float32)
    return dataclasses.replace(rows, row={**rows.row, mark: first})


def find_single_piece_words(features: Features, special: np.ndarray, continues_word: np.ndarray) -> np.ndarray:
    """Returns whether each of the T tokens is a whole word, bool [T]. Special tokens do not count as words.

    `special` contains the ids of the special tokens. `continues_word`, bool [V], marks pieces that continue a word.
    """
    continues = np.append(continues_word[features.tokens], False)  # [T + 1]
    continues[features.offsets[:-1]] = False  # the first token of a sequence starts a word
    return ~(continues[:-1] | continues[1:] | np.isin(features.tokens, special))


def choose_words(features: Features, words: np.ndarray, *, seed: int, probability: float, mark: str) -> np.ndarray:
    """Chooses the tokens to replace. Returns bool [T].

    `features` comes from `repeat_rows`. In the first copy of a row, no token is chosen. In the other copies, each token
    of `words`, bool [T], is chosen with the given probability. A draw depends on the seed, the index of the token's
    sequence in `features`, and the token's position in that sequence.
    """
    n, position = token_positions(features)
    copies = np.repeat(features.row[mark] == 0, features.choices)[n]
    return words & copies & (uniform(seed, Stream.AUGMENT, n, position) < probability)


def token_positions(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each token's sequence, and the token's position in that sequence, int64 [T] each."""
    n = np.repeat(np.arange(len(features.second)), features.sequence_lengths)
    return n, np.arange(len(features.tokens)) - features.offsets[n]


def find_shared_words(features: Features, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `words`, bool [T], in the prefix that a sequence shares with the first sequence of its row.

    Returns:
      The indices of these words, int64 [M], and the indices of the same words in the first sequence of the row, int64
      [M]. Both are empty if each row has one sequence.
    """
    n, position = token_positions(features)
    first = n - n % features.choices  # [T], the first sequence of the token's row
    originals = np.minimum(features.offsets[first] + position, len(features.tokens) - 1)
    equal = (position < features.sequence_lengths[first]) & (features.tokens[originals] == features.tokens)
    prefix = features.sequence_lengths.copy()  # [N], the length of the common beginning
    np.minimum.at(prefix, n[~equal], position[~equal])
    (repeats,) = np.nonzero(words & (position < prefix[n]) & (n != first))
    return repeats, originals[repeats]


def choose_candidates(
    candidates: np.ndarray, words: np.ndarray, n: np.ndarray, position: np.ndarray, *, seed: int
) -> np.ndarray:
    """Draws a replacement for each word: one of the K most likely candidates other than the word. Returns int32 [M].

    Args:
      candidates: int32 [M, K + 1], distinct ids, the most likely first.
      words: int32 [M], the ids of the words to replace.
      n, position: int64 [M], the index of each word's sequence, and the word's position in that sequence.
    """
    K = candidates.shape[1] - 1
    other = candidates != words[:, None]
    other[:, K] &= ~other[:, :K].all(1)  # the last candidate is used only if the word is among the first K
    order = np.argsort(~other, axis=1, kind='stable')  # usable candidates first
    drawn = randint(K, seed, Stream.AUGMENT_WORD, n, position)
    return np.take_along_axis(candidates, np.take_along_axis(order, drawn[:, None], 1), 1)[:, 0]
