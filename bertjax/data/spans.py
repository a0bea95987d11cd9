"""Chooses the words to mask for the units "word" and "span" of masking.py. Processes all rows of a batch together.

The spans of a row are considered in random order, and a step considers the next span of every row. A span is shortened
to the words that fit in the unused budget of its row. It is rejected if it overlaps a span that was selected before.
"""

import dataclasses
import itertools

import numpy as np

from bertjax.data.batch import ordinals
from bertjax.data.hashing import Stream, hash_bits, uniform

_RANKS = 16  # the number of spans that are drawn at once for each row


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of all rows of a batch, in order.

    Attributes:
      positions: int64 [M], the maskable positions as indices of the flattened [B, S], ascending.
      bounds: int64 [N + 1], the start of each word in `positions`; the last entry is M.
      rows: int64 [B + 1], the first word of each row; the last entry is N.
      seq_len: S.
    """

    positions: np.ndarray
    bounds: np.ndarray
    rows: np.ndarray
    seq_len: int


def find_words(input_ids: np.ndarray, maskable: np.ndarray, continues_word: np.ndarray) -> Words:
    """Divides the maskable positions of rows into words. See `masking.mask_batch` and `Tokenizer` for the arguments.

    A new word begins at a piece that does not continue a word, after a gap in the positions, and in a new row.
    """
    rows, seq_len = input_ids.shape
    positions = np.flatnonzero(maskable)
    edges = np.searchsorted(positions, np.arange(rows + 1) * seq_len)
    begins = ~continues_word[input_ids.reshape(-1)[positions]]
    begins[1:] |= np.diff(positions) != 1
    begins[edges[edges < len(positions)]] = True
    bounds = np.flatnonzero(begins)
    return Words(positions, np.append(bounds, len(positions)), np.searchsorted(bounds, edges), seq_len)


def choose_spans(
    words: Words, budget: np.ndarray, max_positions: np.ndarray, max_words: int, seed: int, n: np.ndarray
) -> np.ndarray:
    """Selects spans of 1 to `max_words` whole words until no further span fits the budget.

    Spans are ordered by the random scores of their first words. A span does not extend beyond a gap in the positions.
    If all words of a row are longer than the budget, the first `max_positions` positions of the shortest word are
    selected. So every row with words has at least one position to predict.

    Args:
      budget: int64 [B], the number of positions to mask in each row.
      max_positions: int64 [B], the maximum number of positions to mask in a word that is longer than the budget.
      max_words: The maximum number of words in a span.
      seed, n: The keys of the random scores and span lengths; n is int64 [B].

    Returns:
      int64, the selected positions as indices of the flattened [B, S], ascending.
    """
    counts, sizes = np.diff(words.rows), np.diff(words.bounds)
    bounds = np.append(words.bounds, np.full(max_words, words.bounds[-1]))  # padded for the last spans
    selected = np.zeros(len(sizes) + max_words, bool)
    ranked, segment_ends = _rank_words(words, seed, n), _segment_ends(words)
    cumulative = np.cumsum(1 / np.arange(1, max_words + 1))
    step, unused, first_rank = np.arange(max_words)[:, None], budget.copy(), 0
    if max_words == 1:  # words cannot overlap, so all words before the first that is too long are selected at once
        size = np.where(ranked >= 0, sizes[ranked], 0)
        whole = (ranked >= 0) & (np.cumsum(size, axis=1) <= budget[:, None])
        selected[ranked[whole]] = True
        unused -= np.sum(size * whole, axis=1)
        first_rank = int(whole.sum(1)[unused > 0].min(initial=words.seq_len))
    for rank in itertools.count(first_rank, _RANKS):
        active = np.flatnonzero((unused > 0) & (rank < counts))
        if not active.size:
            break
        begin = ranked[active, rank : rank + _RANKS].T  # [ranks, A]
        # The probability of a length is proportional to 1 / length, for the lengths that fit in the segment.
        draws = uniform(seed, Stream.MASK_SPAN, n[active], rank + np.arange(len(begin))[:, None])
        available = np.minimum(segment_ends[begin] - begin, max_words)
        size_in_words = np.searchsorted(cumulative, draws * cumulative[available - 1], 'right') + 1
        covered = begin[:, None] + step  # [ranks, max_words, A], the words of each span
        size = bounds[covered + 1] - bounds[begin][:, None]  # up to and including each word
        is_in_span = (step < size_in_words[:, None]) & (begin >= 0)[:, None]
        size = np.where(is_in_span, size, words.seq_len + 1)
        room = unused[active]
        for words_of_span, size_to_word in zip(covered, size, strict=True):
            fits = size_to_word <= room
            fits &= ~(fits & selected[words_of_span]).any(0)
            room -= (size_to_word * fits).max(0)
            selected[words_of_span[fits]] = True
        unused[active] = room
    for row in np.flatnonzero((unused == budget) & (counts > 0)).tolist():
        first, end = words.rows[row : row + 2]
        shortest = first + sizes[first:end].argmin()
        selected[shortest], sizes[shortest] = True, min(sizes[shortest], max_positions[row])
    chosen = np.flatnonzero(selected)
    begins, sizes = words.bounds[chosen], sizes[chosen]
    return words.positions[np.repeat(begins, sizes) + ordinals(sizes)]


def _rank_words(words: Words, seed: int, n: np.ndarray) -> np.ndarray:
    """Returns the words of each row by ascending random score, int64 [B, W], then -1."""
    counts = np.diff(words.rows)
    columns = words.positions[words.bounds[:-1]] % words.seq_len
    scores = hash_bits(seed, Stream.MASK_CHOICE, np.repeat(n, counts), columns)
    # The low bits of each score are replaced by the word's index in its row, as in `masking.py`.
    low = np.uint64((1 << words.seq_len.bit_length()) - 1)
    is_word = np.arange(counts.max(initial=0)) < counts[:, None]  # [B, W]
    keys = np.full(is_word.shape, ~np.uint64(0))
    keys[is_word] = scores & ~low | ordinals(counts).astype(np.uint64)
    keys.sort(axis=1)
    return np.where(is_word, (keys & low).astype(np.int64) + words.rows[:-1, None], -1)


def _segment_ends(words: Words) -> np.ndarray:
    """Returns the end of each word's segment, int64 [N]. A segment is a range of words of a row without gaps."""
    inner = words.bounds[1:-1]
    begins = np.append(True, words.positions[inner - 1] + 1 != words.positions[inner])[: len(words.bounds) - 1]
    begins[words.rows[:-1][np.diff(words.rows) > 0]] = True
    segments = np.append(np.flatnonzero(begins), len(begins))
    return np.repeat(segments[1:], np.diff(segments))
