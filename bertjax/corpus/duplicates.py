"""Equal documents and equal lines of all shards, by their hashes.

They are looked for in one bucket of the hash space at a time, so that no set of all hashes is ever held, and so that
buckets can be worked on apart.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.corpus.merge import Shard

BUCKET = 1 << 22  # Hashes that are sorted at once.


def bucket_edges(count: int) -> list[int]:
    """The edges of the buckets of 64-bit hashes: `count` hashes in all, in each at most about BUCKET of them."""
    number = max(1, -(-count // BUCKET))
    return [(index << 64) // number for index in range(number + 1)]


def sorted_runs(shard: Shard) -> list[np.ndarray]:
    """The hashes of a shard's lines, uint64, in runs that are sorted."""
    lines, ends = shard.lines, itertools.accumulate(shard.record['runs'], initial=0)
    return [lines[a:b] for a, b in itertools.pairwise(ends)]


def from_runs(runs: Sequence[np.ndarray], low: int, high: int) -> np.ndarray:
    """The hashes of sorted runs in [low, high)."""
    pieces = [np.empty(0, '<u8')]
    for run in runs:
        a = np.searchsorted(run, np.uint64(low))
        b = len(run) if high >> 64 else np.searchsorted(run, np.uint64(high))
        pieces.append(run[a:b])
    return np.concatenate(pieces)


def distinct(hashes: np.ndarray) -> int:
    """Number of different ones."""
    hashes = np.sort(hashes)
    return int(np.count_nonzero(hashes[1:] != hashes[:-1])) + bool(len(hashes))


def between(hashes: np.ndarray, low: int, high: int) -> np.ndarray:
    """int64: which of the hashes, in any order, are in [low, high)."""
    return np.flatnonzero((hashes >= np.uint64(low)) & (hashes <= np.uint64(high - 1)))


def later_equals(hashes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The places, int64, of hashes that an earlier place has too."""
    order = np.lexsort((places, hashes))
    same = hashes[order][1:] == hashes[order][:-1]
    return places[order][1:][same]


def count_distinct_lines(shards: list[Shard]) -> int:
    """Number of different lines of all shards."""
    runs = [run for shard in shards for run in sorted_runs(shard)]
    edges = bucket_edges(sum(map(len, runs)))
    return sum(distinct(from_runs(runs, low, high)) for low, high in itertools.pairwise(edges))


def find_repeats(shards: list[Shard]) -> np.ndarray:
    """bool [documents], in the order of the shards: whether an equal document came before."""
    total = sum(len(shard.documents) for shard in shards)
    repeats = np.zeros(total, bool)
    for low, high in itertools.pairwise(bucket_edges(total)):
        hashes, places, base = [np.empty(0, '<u8')], [np.empty(0, np.int64)], 0
        for shard in shards:
            found = shard.documents['hash']
            inside = between(found, low, high)
            hashes.append(found[inside])
            places.append(inside + base)
            base += len(found)
        repeats[later_equals(np.concatenate(hashes), np.concatenate(places))] = True
    return repeats
