"""Choose which sequences share a row when a finished model computes them: little padding, in few shapes."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bertjax.data.length_buckets import fill_last_batch, find_buckets
from bertjax.data.packing import best_fit, rows_of

MOST = 4  # sequences of a row
_GAIN = 0.95  # Rows are packed if that costs at most this share of a sequence a row.


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
class PackingPlan:
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


def one_per_row(lengths: np.ndarray, shapes: tuple[int, ...], size: int) -> PackingPlan:
    """A sequence a row."""
    bucket = find_buckets(lengths, shapes)
    # No longer than they need: the last batch has the longest of all, whatever is in it.
    return PackingPlan(np.arange(len(lengths))[:, None], bucket, shapes[: int(bucket.max(initial=0)) + 1], size)


def several_per_row(lengths: np.ndarray, shapes: tuple[int, ...], sizes: tuple[int, ...], least: int) -> PackingPlan:
    """Up to MOST sequences a row, best fit decreasing; a row has the first length that holds its sequences one by one,
    from number `least` on."""
    bucket = np.maximum(find_buckets(lengths, shapes), least)
    rows, buckets = [], []
    for number in np.unique(bucket).tolist():
        own = np.flatnonzero(bucket == number)
        order, ends = best_fit(lengths[own], shapes[number], MOST)
        members = np.full((len(ends), MOST), -1)
        members[rows_of(ends)] = own[order]
        rows.append(members)
        buckets.append(np.full(len(ends), number))
    members, bucket = np.concatenate(rows), np.concatenate(buckets)
    return PackingPlan(members, bucket, shapes[: int(bucket.max()) + 1], size_of(len(members), sizes))


def cheapest_plan(
    lengths: np.ndarray,
    shapes: tuple[int, ...],
    size: int,
    sizes: Callable[[int], tuple[int, ...]],
    cost: Cost,
) -> PackingPlan:
    """The plan that costs least; nothing but the arguments decides.

    Args:
      lengths: int64 [N], of the sequences; N is not 0.
      shapes: lengths that a row may have, ascending; the last holds every sequence.
      size: rows of a batch with a sequence a row.
      sizes: the possible rows of a batch of packed rows, ascending, by the rows' length; the first that holds all is
        taken.
      cost: of what is computed.
    """
    best = one_per_row(lengths, shapes, size)
    bound = _GAIN * best.cost(cost)
    # Longer rows than MOST sequences of the mean length fill cannot be full.
    for least in range(bisect.bisect_left(shapes, lengths.min()), bisect.bisect(shapes, MOST * lengths.mean())):
        plan = several_per_row(lengths, shapes, sizes(shapes[least]), least)
        if (own := plan.cost(cost)) < bound:
            best, bound = plan, own
    return best
