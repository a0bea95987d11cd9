"""Finds repeated documents and counts distinct lines in all shards, by their hashes.

The hash space is divided into buckets, which are processed one by one or by several workers, to bound memory.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.corpus.merge import Shard

BUCKET = 1 << 22  # the maximum number of hashes to sort at once


def bucket_edges(count: int) -> list[int]:
    """Returns the edges of equal buckets of 64-bit hashes, each with at most about BUCKET of `count` hashes."""
    number = max(1, -(-count // BUCKET))
    return [(index << 64) // number for index in range(number + 1)]


def sorted_runs(shard: Shard) -> list[np.ndarray]:
    """Returns the hashes of a shard's lines as sorted runs: a list of uint64 arrays."""
    lines, ends = shard.array('lines'), itertools.accumulate(shard.record['runs'], initial=0)
    return [lines[a:b] for a, b in itertools.pairwise(ends)]


def slice_runs(runs: Sequence[np.ndarray], low: int, high: int) -> np.ndarray:
    """Returns the hashes in [low, high) from sorted runs."""
    pieces = [np.empty(0, '<u8')]
    for run in runs:
        a = np.searchsorted(run, np.uint64(low))
        b = len(run) if high >> 64 else np.searchsorted(run, np.uint64(high))
        pieces.append(run[a:b])
    return np.concatenate(pieces)


def indices_between(hashes: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns the indices, int64, of the hashes in [low, high). The hashes need not be sorted."""
    return np.flatnonzero((hashes >= np.uint64(low)) & (hashes <= np.uint64(high - 1)))


def find_later_equals(hashes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns the numbers, int64, of the documents that have the same hash as a document with a smaller number."""
    order = np.lexsort((numbers, hashes))
    same = hashes[order][1:] == hashes[order][:-1]
    return numbers[order][1:][same]


def count_distinct_lines(shards: list[Shard]) -> int:
    """Returns the number of distinct lines of all shards."""
    runs = [run for shard in shards for run in sorted_runs(shard)]
    edges = bucket_edges(sum(map(len, runs)))
    return sum(len(np.unique(slice_runs(runs, low, high))) for low, high in itertools.pairwise(edges))


def find_repeats(shards: list[Shard]) -> np.ndarray:
    """Returns bool [documents], in the order of the shards: whether each document repeats an earlier document."""
    total = sum(len(shard.array('documents')) for shard in shards)
    repeats = np.zeros(total, bool)
    for low, high in itertools.pairwise(bucket_edges(total)):
        hashes, numbers, base = [np.empty(0, '<u8')], [np.empty(0, np.int64)], 0
        for shard in shards:
            shard_hashes = shard.array('documents')['hash']
            inside = indices_between(shard_hashes, low, high)
            hashes.append(shard_hashes[inside])
            numbers.append(inside + base)
            base += len(shard_hashes)
        repeats[find_later_equals(np.concatenate(hashes), np.concatenate(numbers))] = True
    return repeats
