"""Choose which sequences share a row in a finished model, with little padding and few shapes."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bertjax.data.length_buckets import fill_last_batch, find_buckets
from bertjax.data.packing import best_fit, rows_of_items

MOST = 4  # the most sequences of a row
_GAIN = 0.95  # rows are packed if this costs at most this share of one sequence per row


@dataclasses.dataclass(frozen=True)
class Cost:
    """The costs of a plan, in units of one position without attention.

    Attributes:
      attention: The cost of attention from one position to another.
      shape: The cost of a further shape, which must be compiled.
    """

    attention: float
    shape: float

    @classmethod
    def of(cls, width: int, layers: int) -> 'Cost':
        """Returns the costs of an encoder.

        A position takes 24·L·D² operations, and attention to each position of its row 4·L·D, each about twice as slow
        (docs/performance.md). Compiling takes as long as about 10¹¹ operations.
        """
        return cls(attention=2 / (6 * width), shape=1e11 / (24 * layers * width**2))


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Batches of rows with up to E sequences.

    Attributes:
      members: int64 [R, E], the sequences of each row; -1 for none.
      bucket: int64 [R], the index of each row's length in `shapes`.
      shapes: The lengths of rows, ascending.
      size: The rows of a batch.
    """

    members: np.ndarray
    bucket: np.ndarray
    shapes: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """E, the most sequences of a row."""
        return self.members.shape[1]

    @functools.cached_property
    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        return fill_last_batch(np.arange(len(self.members)), self.bucket, len(self.shapes), self.size)

    def batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yields the (sequences [size · E], row length) of each batch: every sequence once, and -1 in empty slots."""
        empty = np.concatenate([self.members, np.full((1, self.count), -1)])
        rows, buckets = self._filled
        for batch_rows, bucket in zip(rows.reshape(-1, self.size), buckets.tolist(), strict=True):
            yield empty[batch_rows].reshape(-1), self.shapes[bucket]

    def cost(self, cost: Cost) -> float:
        """Returns the cost of all batches, including padding."""
        lengths = np.asarray(self.shapes)[self._filled[1]]
        positions = self.size * float((lengths * (1 + cost.attention * lengths)).sum())
        return positions + cost.shape * len(np.unique(lengths))


def choose_batch_rows(rows: int, sizes: tuple[int, ...]) -> int:
    """Returns the rows of a batch: the first of `sizes` (ascending) that holds all `rows`, or the last."""
    return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)]


def plan_single_rows(lengths: np.ndarray, shapes: tuple[int, ...], size: int) -> PackingPlan:
    """Returns the plan with one sequence per row."""
    bucket = find_buckets(lengths, shapes)
    # Drop unused lengths, because the last batch has the longest length whatever it contains.
    return PackingPlan(np.arange(len(lengths))[:, None], bucket, shapes[: int(bucket.max(initial=0)) + 1], size)


def plan_packed_rows(lengths: np.ndarray, shapes: tuple[int, ...], sizes: tuple[int, ...], least: int) -> PackingPlan:
    """Returns the plan with up to MOST sequences per row, by best fit decreasing.

    Sequences share rows of the shortest length that holds each one alone, but not shorter than `shapes[least]`.
    """
    bucket = np.maximum(find_buckets(lengths, shapes), least)
    rows, buckets = [], []
    for number in np.unique(bucket).tolist():
        in_bucket = np.flatnonzero(bucket == number)
        order, ends = best_fit(lengths[in_bucket], shapes[number], MOST)
        members = np.full((len(ends), MOST), -1)
        members[rows_of_items(ends)] = in_bucket[order]
        rows.append(members)
        buckets.append(np.full(len(ends), number))
    members, bucket = np.concatenate(rows), np.concatenate(buckets)
    return PackingPlan(members, bucket, shapes[: int(bucket.max()) + 1], choose_batch_rows(len(members), sizes))


def choose_plan(
    lengths: np.ndarray,
    shapes: tuple[int, ...],
    size: int,
    sizes: Callable[[int], tuple[int, ...]],
    cost: Cost,
) -> PackingPlan:
    """Returns the cheapest plan, a pure function of the arguments.

    Args:
      lengths: int64 [N], the lengths of the sequences; N > 0.
      shapes: The possible lengths of a row, ascending; the last one holds every sequence.
      size: The rows of a batch with one sequence per row.
      sizes: A function from the length of packed rows to the possible batch rows, ascending (see `choose_batch_rows`).
      cost: The costs of the encoder.
    """
    best = plan_single_rows(lengths, shapes, size)
    bound = _GAIN * best.cost(cost)
    # Rows longer than MOST sequences of the mean length cannot be full.
    for least in range(bisect.bisect_left(shapes, lengths.min()), bisect.bisect(shapes, MOST * lengths.mean())):
        plan = plan_packed_rows(lengths, shapes, sizes(shapes[least]), least)
        if (plan_cost := plan.cost(cost)) < bound:
            best, bound = plan, plan_cost
    return best
