"""Chooses the words to mask for the units "word" and "span" of masking.py. Processes all rows of a batch together.

Spans are considered in random order. A span is rejected if it overlaps a span that was selected before. For speed, most
spans are selected together. While a row has budget for whole spans, only overlaps matter. Each step selects all
undecided spans that overlap no earlier undecided span, then rejects all spans that overlap a selected span. Finally,
`_fill` spends the small remainder of each row's budget span by span.
"""

import dataclasses

import numpy as np

from bertjax.data.hashing import Stream, hash_bits_ragged, uniform

_RANKS = 8  # the number of spans that `_fill` draws at once for each row


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

    Spans are ordered by the random scores of their first words. If all words of a row are longer than the budget, the
    first `max_positions` positions of the shortest word are selected. So every row with words has at least one position
    to predict.

    Args:
      budget: int64 [B], the number of positions to mask in each row.
      max_positions: int64 [B], the maximum number of positions to mask in a word that is longer than the budget.
      max_words: The maximum number of words in a span.
      seed, n: The keys of the random scores and span lengths; n is int64 [B].

    Returns:
      int64, the selected positions as indices of the flattened [B, S], ascending.
    """
    counts, sizes = np.diff(words.rows), np.diff(words.bounds)
    if not len(sizes):
        return words.positions
    positions = words.positions[words.bounds[:-1]] - np.repeat(np.arange(len(counts)) * words.seq_len, counts)
    scores = hash_bits_ragged(counts, seed, Stream.MASK_CHOICE, n, positions)
    # A row needs few spans. So for nearly all rows, it is enough to sort only the words with the lowest scores.
    in_row = np.maximum(np.diff(words.bounds[words.rows]), 1)
    per_span = max_words / np.sum(1 / np.arange(1, max_words + 1)) * in_row / np.maximum(counts, 1)  # mean positions
    expected = budget / np.maximum(per_span, 1) * (1 if max_words == 1 else 1.25)
    share = np.minimum((expected + 3 * np.sqrt(expected) + 4) / np.maximum(counts, 1), 1)
    selected, remaining = _choose(words, scores, share, budget, max_words, seed, n)
    retry = (remaining > 0) & (share < 1)
    if retry.any():
        retried, rest = _choose(words, scores, retry.astype(float), np.where(retry, budget, 0), max_words, seed, n)
        selected, remaining = np.where(np.repeat(retry, counts), retried, selected), np.where(retry, rest, remaining)
    for row in np.flatnonzero((remaining == budget) & (counts > 0)).tolist():
        first, end = words.rows[row : row + 2]
        shortest = first + sizes[first:end].argmin()
        selected[shortest], sizes[shortest] = True, min(sizes[shortest], max_positions[row])
    chosen = np.flatnonzero(selected)
    begins, sizes = words.bounds[chosen], sizes[chosen]
    return words.positions[np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())]


def _choose(
    words: Words, scores: np.ndarray, share: np.ndarray, budget: np.ndarray, max_words: int, seed: int, n: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each word is selected, bool [N], and the unused budget of each row, int64 [B].

    A span may begin only at a word with a low score. `scores` is uint64 [N]. `share`, float64 [B], is the approximate
    share of such words in each row. For the other arguments, see `choose_spans`.
    """
    spans = _Spans(words, scores, share, max_words, seed, n)
    selected = np.zeros(len(scores) + max_words, bool)  # padded, because `_fill` looks `max_words` words ahead
    if not spans.width:
        return selected[: len(scores)], budget
    rank, remaining = _select_whole_spans(spans, budget, selected)
    active = np.flatnonzero((remaining > 0) & (rank < spans.counts))
    while active.size:
        _fill(spans, active, rank, remaining, selected)
        rank[active] += _RANKS
        active = active[(remaining[active] > 0) & (rank[active] < spans.counts[active])]
    return selected[: len(scores)], remaining


class _Spans:
    """The spans of each row, ranked by the score of their first word.

    Attributes:
      max_words: The maximum number of words in a span.
      bounds: The bounds of the words, padded, because `_fill` looks `max_words` words ahead.
      counts: int64 [B], the number of spans of each row.
      width: The largest number of spans of a row.
    """

    def __init__(self, words: Words, scores: np.ndarray, share: np.ndarray, max_words: int, seed: int, n: np.ndarray):
        # The low bits of each score are replaced by the span's index in its row, as in `masking.py`.
        self._low = np.uint64((1 << words.seq_len.bit_length()) - 1)
        limit = np.minimum(share * 2.0**32, 2.0**32 - 1).astype(np.uint64) << np.uint64(32) | np.uint64(2**32 - 1)
        self._words = np.flatnonzero(scores <= np.repeat(limit, np.diff(words.rows)))
        self._begins = np.searchsorted(self._words, words.rows)
        self.counts = np.diff(self._begins)
        self.width = int(self.counts.max())
        keys = np.full((len(self.counts), self.width), ~np.uint64(0))
        keys[np.arange(self.width) < self.counts[:, None]] = scores[self._words]
        keys &= ~self._low
        keys |= np.arange(self.width, dtype=np.uint64)
        keys.sort(axis=1)
        self._keys, self._seed, self._n = keys, seed, n
        self.max_words = max_words
        self.bounds = np.append(words.bounds, np.full(max_words, words.bounds[-1]))
        self._cumulative = np.cumsum(1 / np.arange(1, max_words + 1))
        if max_words > 1:
            # A segment is a range of words without gaps. A span must not extend beyond its segment.
            begins = np.ones(len(scores), bool)
            begins[1:] = words.positions[words.bounds[1:-1] - 1] + 1 != words.positions[words.bounds[1:-1]]
            begins[words.rows[:-1][words.rows[:-1] < words.rows[1:]]] = True
            segments = np.append(np.flatnonzero(begins), len(begins))
            self._segment_ends = np.repeat(segments[1:], np.diff(segments))

    def draw(self, rows: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first word of each span and the number of its words (0 for a rank without a span).

        Args:
          rows: int64 [A, 1], the rows of the spans.
          ranks: int64 [A, R] or [1, R], the ranks of the spans in their rows.
        """
        exists = ranks < self.counts[rows]
        key = self._keys[rows, np.minimum(ranks, self.width - 1)]
        first = self._words[np.where(exists, (key & self._low).astype(np.int64) + self._begins[rows], 0)]
        if self.max_words == 1:
            return first, exists.astype(np.int64)
        # The probability of a length is proportional to 1 / length, for the lengths that fit in the segment.
        draws = uniform(self._seed, Stream.MASK_SPAN, self._n[rows], ranks)
        available = np.minimum(self._segment_ends[first] - first, self.max_words)
        sizes_in_words = np.searchsorted(self._cumulative, draws * self._cumulative[available - 1], 'right') + 1
        return first, np.where(exists, sizes_in_words, 0)


def _select_whole_spans(spans: _Spans, budget: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Selects spans of each row while the budget is large enough for whole spans.

    Returns:
      int64 [B] each: the rank at which the selection of the row stopped, and the unused budget.
    """
    ranks = np.arange(min(int(budget.max()), spans.width))
    first, sizes_in_words = spans.draw(np.arange(len(budget))[:, None], ranks[None])
    sizes = spans.bounds[first + sizes_in_words] - spans.bounds[first]
    free = sizes_in_words > 0 if spans.max_words == 1 else _without_overlaps(first, sizes_in_words, len(selected))
    used = np.cumsum(np.where(free, sizes, 0), axis=1)
    # Selection stops at the first span that is too long for the budget. If that span overlaps a selected span, `_fill`
    # may shorten it so far that it no longer overlaps.
    over = np.where(free, used, used + sizes) > budget[:, None]
    end = np.where(over.any(1), over.argmax(1), len(ranks))
    free &= ranks < end[:, None]
    first, sizes_in_words = first[free], sizes_in_words[free]
    for step in range(int(sizes_in_words.max(initial=0))):
        selected[first[sizes_in_words > step] + step] = True
    used = np.concatenate([np.zeros((len(budget), 1), np.int64), used], axis=1)
    return end, budget - used[np.arange(len(budget)), end]


def _without_overlaps(first: np.ndarray, sizes_in_words: np.ndarray, words: int) -> np.ndarray:
    """Returns bool [B, R], True for spans that overlap no selected span of lower rank. The budget is ignored."""
    free, selected, owner = np.zeros(first.shape, bool), np.zeros(words, bool), np.empty(words, np.int64)
    open_ = np.flatnonzero(sizes_in_words)  # the spans that are not decided yet
    while open_.size:
        begin, last = first.reshape(-1)[open_], sizes_in_words.reshape(-1)[open_] - 1
        covered = begin + np.minimum(np.arange(last.max() + 1)[:, None], last)  # [words, spans], padded with last words
        # The last write wins, so the owner of a word is the span of the lowest rank that covers it.
        owner[covered.T[::-1].reshape(-1)] = np.repeat(open_[::-1], len(covered))
        lowest = (owner[covered] == open_).all(0)
        free.reshape(-1)[open_[lowest]] = True
        selected[covered[:, lowest]] = True
        open_ = open_[~selected[covered].any(0)]
    return free


def _fill(spans: _Spans, active: np.ndarray, rank: np.ndarray, remaining: np.ndarray, selected: np.ndarray) -> None:
    """Considers the next _RANKS spans of the active rows one by one.

    A span is shortened to the words that fit in the unused budget `remaining`. It is rejected if one of these words is
    already selected.
    """
    first, sizes_in_words = spans.draw(active[:, None], rank[active, None] + np.arange(_RANKS))
    step, room = np.arange(spans.max_words)[:, None], remaining[active]
    for begin, words in zip(first.T, sizes_in_words.T, strict=True):
        covered = begin + step  # [max_words, A]
        size = spans.bounds[covered + 1] - spans.bounds[begin]
        fits = (step < words) & (size <= room)
        fits &= ~(fits & selected[covered]).any(0)
        room -= np.where(fits, size, 0).max(0)
        selected[covered[fits]] = True
    remaining[active] = room
