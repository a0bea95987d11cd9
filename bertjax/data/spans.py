"""Which words of a row are masked: the choice of the units word and span of masking.py, for a whole batch at once."""

import numpy as np

from bertjax.data.hashing import Stream, uniform

_RANKS = 64  # words that are looked at together


def choose_spans(
    scores: np.ndarray,
    maskable: np.ndarray,
    word_starts: np.ndarray,
    budget: np.ndarray,
    most: np.ndarray,
    longest: int,
    seed: int,
    n: np.ndarray,
) -> np.ndarray:
    """Spans of 1 to `longest` whole words, taken in order of their first word's score until the budget is full.

    Where every word of a row exceeds its budget, the shortest is masked all the same, cut to `most` positions: a row
    always has something to predict.

    Args:
      scores: uint64 [B, S].
      maskable: bool [B, S].
      word_starts: bool [B, S], those maskable positions at which a word begins.
      budget, most: int64 [B].
      longest: words of a span, at most.
      seed, n: what the lengths of spans are keyed by; n int64 [B].

    Returns:
      bool [B, S].
    """
    rows, seq_len = scores.shape
    words = word_starts.sum(1)
    width = int(words.max(initial=0))
    if width == 0:
        return np.zeros_like(maskable)
    # Words one after the other: where each starts among all positions, its row, its number there, its length. What can
    # be masked in a row begins with a word, so that a word's last position is the last before the next word's.
    start = np.flatnonzero(word_starts)
    row = np.repeat(np.arange(rows), words)
    number = np.arange(len(start)) - np.repeat(np.cumsum(words) - words, words)
    size = np.add.reduceat(maskable.reshape(-1).view(np.int8), start, dtype=np.int64)
    # The same by row, [B, W] with room for a span beyond the last.
    shape, at = (rows, width + longest), row * (width + longest) + number
    sizes, joined, keys = np.zeros(shape, np.int64), np.zeros(shape, bool), np.full(shape, ~np.uint64(0))
    sizes.reshape(-1)[at] = size
    # A word whose predecessor ends elsewhere than just before it begins a segment; a span stays in its segment.
    joined.reshape(-1)[at[1:]] = (start[:-1] + size[:-1] == start[1:]) & (number[1:] > 0)
    # A word's number is packed into the low bits of its score, as in `masking.py`.
    low = np.uint64((1 << seq_len.bit_length()) - 1)
    keys.reshape(-1)[at] = (scores.reshape(-1)[start] & ~low) | number.astype(np.uint64)
    keys.sort(axis=1)

    step = np.arange(longest)
    chances = np.cumsum(1 / (1 + step))
    taken, left = np.zeros(shape, bool), budget.copy()
    for begin in range(0, width, _RANKS):
        active = np.nonzero((left > 0) & (begin < words))[0]
        if not active.size:
            break
        # What does not depend on what is taken, for many ranks (R) at once: arrays [A, R, K], K words of a span.
        ranks = np.arange(begin, min(begin + _RANKS, width))
        there = ranks < words[active, None]
        first = np.where(there, keys[active, begin : begin + _RANKS][:, : len(ranks)] & low, 0).astype(np.int64)
        places = (active * shape[1])[:, None, None] + first[..., None] + step
        # How many words are there to take from here, and how many are wanted: p(length) proportional to 1/length.
        wanted = available = 1 + np.logical_and.accumulate(joined.reshape(-1)[places[..., 1:]], axis=-1).sum(-1)
        if longest > 1:
            draws = uniform(seed, Stream.MASK_SPAN, n[active, None], ranks)
            wanted = np.searchsorted(chances, draws * chances[available - 1], 'right') + 1
        within = there[..., None] & (step < wanted[..., None])
        totals = np.where(within, sizes.reshape(-1)[places].cumsum(-1), seq_len + 1)
        room, flags = left[active], taken.reshape(-1)
        for total, place in zip(totals.swapaxes(0, 1), places.swapaxes(0, 1), strict=True):
            fitting, met = total <= room[:, None], flags[place]
            fitting &= ~(fitting & met).any(1)[:, None]
            room -= np.where(fitting, total, 0).max(1)
            flags[place] = met | fitting
        left[active] = room

    # From words to positions: each word's flag as far as the next word.
    chosen = np.zeros(rows * seq_len, bool)
    chosen[start[0] :] = np.repeat(taken.reshape(-1)[at], np.diff(start, append=rows * seq_len))
    chosen = chosen.reshape(rows, seq_len) & maskable
    empty = np.nonzero((left == budget) & (words > 0))[0]
    if empty.size:
        shortest = np.argmin(np.where(sizes[empty, :width] > 0, sizes[empty, :width], seq_len + 1), 1)
        begin = start[(np.cumsum(words) - words)[empty] + shortest] - empty * seq_len
        reach = np.minimum(sizes[empty, shortest], most[empty])
        column = np.arange(seq_len)
        chosen[empty] = (column >= begin[:, None]) & (column < (begin + reach)[:, None])
    return chosen
