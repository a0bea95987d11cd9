"""Learns byte-pair merges from word counts, which is the slow part of WordPiece training."""

import collections
import heapq
import itertools
from collections.abc import Mapping, Sequence

from bertjax.text.bert_settings import PREFIX


def learn_merges(
    words: Mapping[str, int], start: Sequence[str], *, max_new_pieces: int, min_frequency: int
) -> list[str]:
    """Returns the pieces that byte-pair merges add to the pieces `start`, in the order of the merges.

    The method comes from Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units
    (2016), section 3.2. It starts from the characters of words in WordPiece's form: `word` is `w ##o ##r ##d`. Each
    step merges the most frequent pair of neighbors into one piece. Among equally frequent pairs, it merges the first
    in code point order, so that the same words always give the same list.

    Args:
      words: {word: count}. Words with a character outside the alphabet become [UNK] and are ignored.
      start: The existing pieces, including the alphabet (`a`, `##a`).
      min_frequency: The minimum count of a pair that is merged.
    """
    pieces, ids = list(start), {piece: index for index, piece in enumerate(start)}
    symbols, counts = _cut(words, ids)
    pairs: collections.Counter[tuple[int, int]] = collections.Counter()
    where: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
    for index, (word, count) in enumerate(zip(symbols, counts, strict=True)):
        for pair in itertools.pairwise(word):
            pairs[pair] += count
            where[pair].append(index)
    heap = [(-count, pieces[a], pieces[b], a, b) for (a, b), count in pairs.items() if count >= min_frequency]
    heapq.heapify(heap)
    while heap and len(pieces) < len(start) + max_new_pieces:
        count, left, right, a, b = heapq.heappop(heap)
        current = pairs[a, b]
        if current != -count:
            # The heap entry is out of date. If the pair's count fell, the entry is replaced now, or dropped if the pair
            # is too rare. If the count rose, the heap already has a newer entry.
            if min_frequency <= current < -count:
                heapq.heappush(heap, (-current, left, right, a, b))
            continue
        piece = left + right.removeprefix(PREFIX)
        new = ids.setdefault(piece, len(pieces))
        if new == len(pieces):
            pieces.append(piece)
        increased = set()
        for index in set(where.pop((a, b))):
            word, count = symbols[index], counts[index]
            merged = _replace(word, a, b, new)
            for pair in itertools.pairwise(word):
                pairs[pair] -= count
            for pair in itertools.pairwise(merged):
                pairs[pair] += count
                if new in pair:
                    where[pair].append(index)
                    increased.add(pair)
            symbols[index] = merged
        del pairs[a, b]
        for x, y in increased:
            if pairs[x, y] >= min_frequency:
                heapq.heappush(heap, (-pairs[x, y], pieces[x], pieces[y], x, y))
    return pieces[len(start) :]


def _cut(words: Mapping[str, int], ids: Mapping[str, int]) -> tuple[list[list[int]], list[int]]:
    """Returns the character ids and the counts of words. Skips words of one character or with an unknown character."""
    symbols, counts = [], []
    continued = {piece.removeprefix(PREFIX): index for piece, index in ids.items() if len(piece) == len(PREFIX) + 1}
    for word, count in words.items():
        word_ids = [ids.get(word[0]), *map(continued.get, word[1:])]
        if len(word_ids) > 1 and None not in word_ids:
            symbols.append(word_ids)
            counts.append(count)
    return symbols, counts


def _replace(word: list[int], a: int, b: int, new: int) -> list[int]:
    """Returns `word` with each pair `a b`, from left to right, replaced by `new`."""
    merged, index = [], 0
    while index < len(word):
        if word[index] == a and index + 1 < len(word) and word[index + 1] == b:
            merged.append(new)
            index += 2
        else:
            merged.append(word[index])
            index += 1
    return merged
