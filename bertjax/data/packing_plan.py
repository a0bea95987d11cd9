"""Packs several short sequences into one row for inference, with little padding and few shapes."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bertjax.data.batch import ordinals
from bertjax.data.length_buckets import fill_last_batch, find_buckets
from bertjax.data.packing import best_fit

MAX_SEQUENCES = 4  # per row
_MAX_COST = 0.95  # packing must cost less than this fraction of the cost of single rows


@dataclasses.dataclass(frozen=True)
class Cost:
    """The costs of an encoder. The unit is the cost of one position without attention.

    Attributes:
      attention: The cost of attention from one position to another.
      shape: The cost of compiling one shape.
    """

    attention: float
    shape: float

    @classmethod
    def of(cls, width: int, layers: int) -> 'Cost':
        """Returns the costs of an encoder.

        With L layers of width D, a position takes 24·L·D² operations. Its attention to one other position takes 4·L·D
        operations. An operation of attention is assumed to take twice as long as any other. Compiling a shape takes
        about as long as 10¹¹ operations.
        """
        return cls(attention=2 / (6 * width), shape=1e11 / (24 * layers * width**2))


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Batches of rows with up to E sequences.

    Attributes:
      members: int64 [R, E], the indices of the sequences in each row; -1 for an empty slot.
      bucket: int64 [R], the index in `shapes` of each row's minimum length. `batches` may pad a row further.
      shapes: The padded lengths of rows, ascending.
      size: The number of rows in a batch.
    """

    members: np.ndarray
    bucket: np.ndarray
    shapes: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """E, the maximum number of sequences in a row."""
        return self.members.shape[1]

    @functools.cached_property
    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        return fill_last_batch(np.arange(len(self.members)), self.bucket, len(self.shapes), self.size)

    def batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (sequence indices [size · E], row length) of each batch. An empty slot has the index -1."""
        empty = np.concatenate([self.members, np.full((1, self.count), -1)])
        rows, buckets = self._filled
        for batch_rows, bucket in zip(rows.reshape(-1, self.size), buckets.tolist(), strict=True):
            yield empty[batch_rows].reshape(-1), self.shapes[bucket]

    def cost(self, cost: Cost) -> float:
        """Returns the cost of computing all batches, including padding, and of compiling their shapes."""
        lengths = np.asarray(self.shapes)[self._filled[1]]
        positions = self.size * float((lengths * (1 + cost.attention * lengths)).sum())
        return positions + cost.shape * len(np.unique(lengths))


def choose_batch_rows(rows: int, sizes: tuple[int, ...]) -> int:
    """Returns the number of rows of a batch: the first of the ascending `sizes` that is >= `rows`, or else the last."""
    return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)]


def plan_single_rows(lengths: np.ndarray, shapes: tuple[int, ...], size: int) -> PackingPlan:
    """Returns the plan with one sequence per row."""
    bucket = find_buckets(lengths, shapes)
    # Lengths above the longest row are dropped, because `fill_last_batch` pads the last batch to the last length.
    return PackingPlan(np.arange(len(lengths))[:, None], bucket, shapes[: int(bucket.max(initial=0)) + 1], size)


def plan_packed_rows(
    lengths: np.ndarray, shapes: tuple[int, ...], sizes: tuple[int, ...], min_bucket: int
) -> PackingPlan:
    """Returns the plan with up to MAX_SEQUENCES sequences per row, by best fit decreasing.

    The row of a sequence has the shortest length that fits the sequence and is at least `shapes[min_bucket]`.
    """
    bucket = np.maximum(find_buckets(lengths, shapes), min_bucket)
    rows, buckets = [], []
    for number in np.unique(bucket).tolist():
        in_bucket = np.flatnonzero(bucket == number)
        order, row = best_fit(lengths[in_bucket], shapes[number], MAX_SEQUENCES)
        counts = np.bincount(row)
        members = np.full((len(counts), MAX_SEQUENCES), -1)
        members[row, ordinals(counts)] = in_bucket[order]
        rows.append(members)
        buckets.append(np.full(len(counts), number))
    members, bucket = np.concatenate(rows), np.concatenate(buckets)
    return PackingPlan(members, bucket, shapes[: int(bucket.max()) + 1], choose_batch_rows(len(members), sizes))


def choose_plan(
    lengths: np.ndarray, shapes: tuple[int, ...], size: int, sizes: Callable[[int], tuple[int, ...]], cost: Cost
) -> PackingPlan:
    """Returns the cheapest plan. A packed plan must cost less than _MAX_COST times the cost of single rows.

    Args:
      lengths: int64 [N], the lengths of the sequences; N > 0.
      shapes: The possible lengths of a row, ascending. The last length fits every sequence.
      size: The number of rows in a batch with one sequence per row.
      sizes: A function that returns the possible numbers of rows in a batch of a packed plan, ascending. Its argument
        is the minimum row length of the plan.
      cost: The costs of the encoder.
    """
    best = plan_single_rows(lengths, shapes, size)
    bound = _MAX_COST * best.cost(cost)
    # The minimum row length is at most MAX_SEQUENCES times the mean length. A longer row would have unused room.
    end = bisect.bisect(shapes, MAX_SEQUENCES * lengths.mean())
    for min_bucket in range(bisect.bisect_left(shapes, lengths.min()), end):
        plan = plan_packed_rows(lengths, shapes, sizes(shapes[min_bucket]), min_bucket)
        if (plan_cost := plan.cost(cost)) < bound:
            best, bound = plan, plan_cost
    return best
