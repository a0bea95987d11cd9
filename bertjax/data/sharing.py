"""Which sequences share a row when a finished model computes them: few positions of padding, in few shapes."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bertjax.data.length_buckets import fill_last_batch, pad_to
from bertjax.data.packing import best_fit

MOST = 4  # sequences of a row
_GAIN = 0.95  # Sequences share rows where that costs at most so much of what it costs without.


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a plan, in positions of a row without attention.

    Attributes:
      attention: of a position, for each position of its row.
      shape: of another shape, which must be compiled.
    """

    attention: float
    shape: float

    @classmethod
    def of(cls, width: int, layers: int) -> 'Cost':
        """Of an encoder. A position takes 24·L·D² operations, and for each position of its row 4·L·D, which take about
        twice as long each (docs/performance.md); compiling takes about as long as 10¹¹."""
        return cls(attention=2 / (6 * width), shape=1e11 / (24 * layers * width**2))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Batches of rows of E sequences.

    Attributes:
      members: int64 [R, E], the sequences of each row; -1 for none.
      bucket: int64 [R], the number of each row's length in `shapes`.
      shapes: lengths of rows, ascending.
      size: rows of a batch.
    """

    members: np.ndarray
    bucket: np.ndarray
    shapes: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """E."""
        return self.members.shape[1]

    @functools.cached_property
    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        return fill_last_batch(np.arange(len(self.members)), self.bucket, len(self.shapes), self.size)

    def batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """(sequences [size · E], length of the rows) of batches that see every sequence once; empty places are -1."""
        empty = np.concatenate([self.members, np.full((1, self.count), -1)])
        rows, buckets = self._filled
        for own, bucket in zip(rows.reshape(-1, self.size), buckets.tolist(), strict=True):
            yield empty[own].reshape(-1), self.shapes[bucket]

    def cost(self, cost: Cost) -> float:
        """Of all of it, with the padding."""
        lengths = np.asarray(self.shapes)[self._filled[1]]
        positions = self.size * float((lengths * (1 + cost.attention * lengths)).sum())
        return positions + cost.shape * len(np.unique(lengths))


def size_of(rows: int, sizes: tuple[int, ...]) -> int:
    """Rows of a batch: the first of `sizes` (ascending) that holds them all, or the last."""
    return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)]


def alone(lengths: np.ndarray, shapes: tuple[int, ...], size: int) -> Plan:
    """A sequence a row."""
    bucket = pad_to(lengths, shapes)
    # No longer than they need: the last batch has the longest of all, whatever is in it.
    return Plan(np.arange(len(lengths))[:, None], bucket, shapes[: int(bucket.max(initial=0)) + 1], size)


def together(lengths: np.ndarray, shapes: tuple[int, ...], sizes: tuple[int, ...], least: int) -> Plan:
    """Up to MOST sequences a row, best fit decreasing; a row has the first length that holds its sequences one by one,
    from number `least` on."""
    bucket = np.maximum(pad_to(lengths, shapes), least)
    rows, buckets = [], []
    for number in np.unique(bucket).tolist():
        own, capacity = np.flatnonzero(bucket == number), shapes[number]
        order, ends = best_fit(lengths[own], capacity, MOST)
        begins = np.concatenate([[0], ends[:-1]])
        row = np.repeat(np.arange(len(ends)), ends - begins)
        members = np.full((len(ends), MOST), -1)
        members[row, np.arange(len(own)) - begins[row]] = own[order]
        rows.append(members)
        buckets.append(np.full(len(ends), number))
    members, bucket = np.concatenate(rows), np.concatenate(buckets)
    return Plan(members, bucket, shapes[: int(bucket.max()) + 1], size_of(len(members), sizes))


def cheapest(
    lengths: np.ndarray,
    shapes: tuple[int, ...],
    size: int,
    sizes: Callable[[int], tuple[int, ...]],
    cost: Cost,
) -> Plan:
    """The plan that costs least; nothing but the arguments decides.

    Args:
      lengths: int64 [N], of the sequences; N is not 0.
      shapes: lengths that a row may have, ascending; the last holds every sequence.
      size: rows of a batch where each sequence has its own.
      sizes: rows of a batch where they share them, ascending, by the rows' length; of the first that holds all.
      cost: of what is computed.
    """
    best = alone(lengths, shapes, size)
    bound = _GAIN * best.cost(cost)
    # Longer rows than MOST sequences of the mean length fill cannot be full.
    for least in range(bisect.bisect_left(shapes, lengths.min()), bisect.bisect(shapes, MOST * lengths.mean())):
        plan = together(lengths, shapes, sizes(shapes[least]), least)
        if (own := plan.cost(cost)) < bound:
            best, bound = plan, own
    return best
