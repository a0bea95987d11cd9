"""Which words of a row are masked: the choice of the units word and span of masking.py, for a whole batch at once.

Spans are taken in an order drawn at random, and whether one is depends on those before it. Two things keep that from
being a step for each span. As long as there is room for all of a span, only spans that it shares words with decide it:
the first of those that are still open is taken, which closes the ones that it meets, for all rows and places at once,
until none is open. And where the room of a row ends, little of it is left, which a few steps fill.
"""

import dataclasses

import numpy as np

from bertjax.data.hashing import Stream, hash_bits_of, uniform

_RANKS = 8  # spans of a row that are drawn together where they are looked at one by one


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a batch, one after the other.

    Attributes:
      places: int64 [M], the maskable positions among all B·S, ascending.
      bounds: int64 [N + 1], where each word begins in `places`; the last is M.
      rows: int64 [B + 1], where each row's words begin; the last is N.
      seq_len: S.
    """

    places: np.ndarray
    bounds: np.ndarray
    rows: np.ndarray
    seq_len: int


def find_words(input_ids: np.ndarray, maskable: np.ndarray, continues_word: np.ndarray) -> Words:
    """The words of rows: what can be masked in a row, cut before each piece that does not continue the piece before it.

    Args:
      input_ids: int32 [B, S].
      maskable: bool [B, S].
      continues_word: bool [V].
    """
    rows, seq_len = input_ids.shape
    places = np.flatnonzero(maskable)
    edges = np.searchsorted(places, np.arange(rows + 1) * seq_len)
    begins = ~continues_word[input_ids.reshape(-1)[places]]
    begins[1:] |= np.diff(places) != 1
    begins[edges[edges < len(places)]] = True
    bounds = np.flatnonzero(begins)
    return Words(places, np.append(bounds, len(places)), np.searchsorted(bounds, edges), seq_len)


def choose_spans(
    words: Words, budget: np.ndarray, most: np.ndarray, longest: int, seed: int, n: np.ndarray
) -> np.ndarray:
    """Spans of 1 to `longest` whole words, taken in order of their first word's score until the budget is full.

    Where every word of a row exceeds its budget, the shortest is masked all the same, cut to `most` positions: a row
    always has something to predict.

    Args:
      words: of the rows.
      budget, most: int64 [B].
      longest: words of a span, at most.
      seed, n: what scores and the lengths of spans are keyed by; n int64 [B].

    Returns:
      int64, the chosen positions among all B·S, ascending.
    """
    counts, sizes = np.diff(words.rows), np.diff(words.bounds)
    if not len(sizes):
        return words.places
    places = words.places[words.bounds[:-1]] - np.repeat(np.arange(len(counts)) * words.seq_len, counts)
    scores = hash_bits_of(counts, seed, Stream.MASK_CHOICE, n, places)
    # Few words begin a span. Those of the lowest scores are enough in nearly all rows, and the others need no order.
    in_row = np.maximum(np.diff(words.bounds[words.rows]), 1)
    per_span = longest / np.sum(1 / np.arange(1, longest + 1)) * in_row / np.maximum(counts, 1)  # positions, on average
    wanted = budget / np.maximum(per_span, 1) * (1 if longest == 1 else 1.25)
    looked = np.minimum((wanted + 3 * np.sqrt(wanted) + 4) / np.maximum(counts, 1), 1)
    taken, left = _choose(words, scores, looked, budget, longest, seed, n)
    again = (left > 0) & (looked < 1)
    if again.any():
        more, still = _choose(words, scores, again.astype(float), np.where(again, budget, 0), longest, seed, n)
        taken, left = np.where(np.repeat(again, counts), more, taken), np.where(again, still, left)
    for row in np.flatnonzero((left == budget) & (counts > 0)).tolist():
        first, end = words.rows[row : row + 2]
        shortest = first + sizes[first:end].argmin()
        taken[shortest], sizes[shortest] = True, min(sizes[shortest], most[row])
    chosen = np.flatnonzero(taken)
    begins, sizes = words.bounds[chosen], sizes[chosen]
    return words.places[np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())]


def _choose(
    words: Words, scores: np.ndarray, looked: np.ndarray, budget: np.ndarray, longest: int, seed: int, n: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The words that are taken, bool [N], and the room that is left of each row's budget, int64 [B].

    Args: see `choose_spans`, and
      scores: uint64 [N].
      looked: float64 [B], the share of each row's words, of the lowest scores, from which spans are tried.
    """
    spans = _Spans(words, scores, looked, longest, seed, n)
    taken = np.zeros(len(scores) + longest, bool)  # with room for a span beyond the last
    if not spans.width:
        return taken[: len(scores)], budget
    rank, left = _take_whole(spans, budget, taken)
    active = np.flatnonzero((left > 0) & (rank < spans.counts))
    while active.size:
        _fill(spans, active, rank, left, taken)
        rank[active] += _RANKS
        active = active[(left[active] > 0) & (rank[active] < spans.counts[active])]
    return taken[: len(scores)], left


class _Spans:
    """The span of each rank of each row: spans are ranked by the score of their first word.

    Attributes:
      longest: words of a span, at most.
      bounds: as of the words, with room for a span beyond the last.
      counts: int64 [B], spans of each row.
      width: the most spans of a row.
    """

    def __init__(self, words: Words, scores: np.ndarray, looked: np.ndarray, longest: int, seed: int, n: np.ndarray):
        # A span's number in its row is packed into the low bits of its score, as in `masking.py`.
        self._low = np.uint64((1 << words.seq_len.bit_length()) - 1)
        limit = np.minimum(looked * 2.0**32, 2.0**32 - 1).astype(np.uint64) << np.uint64(32) | np.uint64(2**32 - 1)
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
        self.longest = longest
        self.bounds = np.append(words.bounds, np.full(longest, words.bounds[-1]))
        self._chances = np.cumsum(1 / np.arange(1, longest + 1))
        if longest > 1:
            # A word that ends elsewhere than just before the next ends a segment; a span stays in its segment.
            begins = np.ones(len(scores), bool)
            begins[1:] = words.places[words.bounds[1:-1] - 1] + 1 != words.places[words.bounds[1:-1]]
            begins[words.rows[:-1][words.rows[:-1] < words.rows[1:]]] = True
            segments = np.append(np.flatnonzero(begins), len(begins))
            self._segment_ends = np.repeat(segments[1:], np.diff(segments))

    def at(self, rows: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first word of each span, and how many it is to have, which is 0 where a row has no more spans.

        Args:
          rows: int64 [A, 1].
          ranks: int64 [A, R] or [1, R].
        """
        there = ranks < self.counts[rows]
        key = self._keys[rows, np.minimum(ranks, self.width - 1)]
        first = self._words[np.where(there, (key & self._low).astype(np.int64) + self._begins[rows], 0)]
        if self.longest == 1:
            return first, there.astype(np.int64)
        # Their chances are in proportion to 1 / length, of the lengths for which there are words.
        draws = uniform(self._seed, Stream.MASK_SPAN, self._n[rows], ranks)
        available = np.minimum(self._segment_ends[first] - first, self.longest)
        wanted = np.searchsorted(self._chances, draws * self._chances[available - 1], 'right') + 1
        return first, np.where(there, wanted, 0)


def _take_whole(spans: _Spans, budget: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Takes the spans of each row as long as there is room for all of each.

    Returns:
      int64 [B] each: the rank of the first span for which there is not, or of the first that was not looked at, and
      the room that is left.
    """
    ranks = np.arange(min(int(budget.max()), spans.width))
    first, wanted = spans.at(np.arange(len(budget))[:, None], ranks[None])
    sizes = spans.bounds[first + wanted] - spans.bounds[first]
    free = wanted > 0 if spans.longest == 1 else _without_overlap(first, wanted, len(taken))
    used = np.cumsum(np.where(free, sizes, 0), axis=1)
    # One that meets others may fit when it is shortened: the first that is too long, free or not, is where this ends.
    over = np.where(free, used, used + sizes) > budget[:, None]
    end = np.where(over.any(1), over.argmax(1), len(ranks))
    free &= ranks < end[:, None]
    first, wanted = first[free], wanted[free]
    for step in range(int(wanted.max(initial=0))):
        taken[first[wanted > step] + step] = True
    used = np.concatenate([np.zeros((len(budget), 1), np.int64), used], axis=1)
    return end, budget - used[np.arange(len(budget)), end]


def _without_overlap(first: np.ndarray, wanted: np.ndarray, words: int) -> np.ndarray:
    """Bool [B, R]: the spans that would be taken were there room for all, each unless it meets one of lower rank."""
    free, taken, owner = np.zeros(first.shape, bool), np.zeros(words, bool), np.empty(words, np.int64)
    open_ = np.flatnonzero(wanted)  # neither taken nor met by one that is
    while open_.size:
        begin, last = first.reshape(-1)[open_], wanted.reshape(-1)[open_] - 1
        covered = begin + np.minimum(np.arange(last.max() + 1)[:, None], last)  # [K, N], their words
        # The last that is written stays: the lowest rank.
        owner[covered.T[::-1].reshape(-1)] = np.repeat(open_[::-1], len(covered))
        lowest = (owner[covered] == open_).all(0)
        free.reshape(-1)[open_[lowest]] = True
        taken[covered[:, lowest]] = True
        open_ = open_[~taken[covered].any(0)]
    return free


def _fill(spans: _Spans, active: np.ndarray, rank: np.ndarray, left: np.ndarray, taken: np.ndarray) -> None:
    """Looks at the next _RANKS spans of the active rows one by one, and takes of each the words for which there is
    room, unless it meets a span that is taken."""
    first, wanted = spans.at(active[:, None], rank[active, None] + np.arange(_RANKS))
    step, room = np.arange(spans.longest)[:, None], left[active]
    for begin, words in zip(first.T, wanted.T, strict=True):
        covered = begin + step  # [K, A]
        size = spans.bounds[covered + 1] - spans.bounds[begin]
        fits = (step < words) & (size <= room)
        fits &= ~(fits & taken[covered]).any(0)
        room -= np.where(fits, size, 0).max(0)
        taken[covered[fits]] = True
    left[active] = room
