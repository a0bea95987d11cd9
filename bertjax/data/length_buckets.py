"""Batches of sequences of about one length, in a handful of static shapes."""

from collections.abc import Callable, Iterator

import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.data.features import Features
from bertjax.data.hashing import Stream, hash_bits

MOST_LENGTHS = 8


def best_length_count(lengths: np.ndarray, cost: Callable[[int], float], *, compiling: float, longest: int) -> int:
    """How many padded lengths cost least in all, computed and compiled, at most MOST_LENGTHS.

    Nothing but the rows and the config decides, so that a run that is begun again has as many.

    Args:
      lengths: int [N], of the rows.
      cost: of one row of so many tokens, however often it is computed.
      compiling: cost of one more length, in the same unit.
      longest: see `choose_lengths`.
    """

    def total(count: int) -> float:
        shapes = choose_lengths(lengths, count=count, longest=longest)
        rows = np.bincount(pad_to(lengths, shapes), minlength=len(shapes))
        return sum(n * cost(shape) for n, shape in zip(rows, shapes, strict=True)) + len(shapes) * compiling

    return min(range(1, MOST_LENGTHS + 1), key=total)


def choose_lengths(lengths: np.ndarray, *, count: int, longest: int, multiple: int = 4) -> tuple[int, ...]:
    """The at most `count` padded lengths, ascending, with which the fewest tokens are padding.

    Args:
      lengths: int [N], of the rows.
      count: how many shapes may be compiled.
      longest: the longest that the model takes, at least that of all rows.
      multiple: every padded length is a multiple of it, or `longest`.
    """
    steps = -(-np.asarray(lengths) // multiple)
    rows = np.bincount(steps)  # rows[i] of i·multiple tokens, rounded up
    top, before = len(rows) - 1, np.concatenate([[0], np.cumsum(rows)])  # before[i]: rows shorter than i steps
    # best[i]: fewest steps of padded length over all rows of up to i steps, with the buckets allowed so far.
    best = np.array([i * before[i + 1] for i in range(top + 1)])
    choice = [np.full(top + 1, -1)]
    for _ in range(count - 1):
        table = [[best[j] + i * (before[i + 1] - before[j + 1]) for j in range(i)] for i in range(top + 1)]
        last = np.array([int(np.argmin(row)) if row and min(row) < best[i] else -1 for i, row in enumerate(table)])
        best = np.array([best[i] if j < 0 else table[i][j] for i, j in enumerate(last)])
        choice.append(last)
    chosen, i = [], top
    for last in reversed(choice):
        if i not in chosen:
            chosen.append(i)
        i = last[i] if last[i] >= 0 else i
    return tuple(min(int(i) * multiple, longest) for i in sorted(chosen) if before[i + 1])


def pad_to(lengths: np.ndarray, shapes: tuple[int, ...]) -> np.ndarray:
    """The number in `shapes` (ascending) of the shortest that holds each length."""
    return np.searchsorted(np.asarray(shapes), lengths)


class BucketedExamples:
    """Endless examples, epoch after epoch; each batch is of one padded length.

    Example n sits in row n % B of batch n // B; which record it is depends on (seed, n), and on B. An epoch sees every
    row of the features once. What is left of a bucket after its full batches moves to the next longer one, so that only
    the last batch of an epoch can have empty places, which weigh nothing.

    The sequence of padded lengths is the same whatever the seed: runs that differ only in their seed can be trained
    together (train/vmapped_runs.py).
    """

    def __init__(self, features: Features, *, batch_size: int, shapes: tuple[int, ...], seed: int, pad_id: int):
        self._features = features
        self._seed = seed
        self._pad_id = pad_id
        self._bucket = pad_to(features.lengths, shapes)  # [N]
        self.shapes = shapes
        self.batch_size = batch_size
        self.batches = -(-len(features) // batch_size)  # of an epoch
        self.cycle_length = self.batches * batch_size
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """int64 [B'] examples of one batch (all of it or a host's part) -> arrays of B' rows."""
        batch = int(indices[0]) // self.batch_size
        if (indices // self.batch_size != batch).any():
            raise ValueError('examples of different batches have different lengths')
        rows, shapes = self._order(batch // self.batches)
        number = batch % self.batches
        chosen = rows[number * self.batch_size + indices % self.batch_size]
        return self._features.batch(chosen, self.shapes[shapes[number]], self._pad_id)

    def abstract_batches(self) -> dict[int, BatchSpec]:
        """{padded length: shapes and dtypes of its batches} of all that an epoch has."""
        used = np.unique(self._order(0)[1])  # the same in every epoch
        return {self.shapes[k]: self._features.spec(self.batch_size, self.shapes[k]) for k in used}

    def coming(self, first: int, batches: int) -> list[int]:
        """The padded lengths of so many batches from example `first` on, each once, in the order in which they come."""
        begin = first // self.batch_size
        soon = range(begin, begin + min(batches, 2 * self.batches))  # two epochs hold a whole one, and so each length
        places = [self._order(n // self.batches)[1][n % self.batches] for n in soon]
        return [self.shapes[place] for place in dict.fromkeys(places)]

    @property
    def mean_length(self) -> float:
        """Padded length of a row, on average over an epoch."""
        return float(np.asarray(self.shapes)[self._order(0)[1]].mean())

    def records(self, indices: np.ndarray) -> np.ndarray:
        """The record that each example is of, -1 for an empty place."""
        rows = np.array([self._order(n // self.cycle_length)[0][n % self.cycle_length] for n in indices.tolist()])
        return np.where(rows < 0, -1, self._features.record[rows])

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's rows [batches·B], -1 for empty places, and the bucket of each batch."""
        kept = self._epoch  # one look: another thread may put another epoch there
        if kept is None or kept[0] != epoch:
            count = len(self._features)
            order = np.argsort(hash_bits(self._seed, Stream.TASK_ORDER, np.arange(count), epoch), kind='stable')
            rows, shapes = fill_last_batch(order, self._bucket[order], len(self.shapes), self.batch_size)
            # Not by the run's seed: see the class.
            mixed = np.argsort(hash_bits(0, Stream.BATCH_ORDER, np.arange(self.batches), epoch), kind='stable')
            kept = self._epoch = epoch, rows.reshape(-1, self.batch_size)[mixed].reshape(-1), shapes[mixed]
        return kept[1], kept[2]


def sorted_batches(features: Features, *, batch_size: int, shapes: tuple[int, ...]) -> Iterator[tuple[np.ndarray, int]]:
    """(rows [B], padded length) of batches that see every row once; empty places are -1."""
    rows, buckets = fill_last_batch(np.arange(len(features)), pad_to(features.lengths, shapes), len(shapes), batch_size)
    for row, bucket in zip(rows.reshape(-1, batch_size), buckets, strict=True):
        yield row, shapes[bucket]


def fill_last_batch(
    order: np.ndarray, bucket: np.ndarray, count: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows batch after batch, bucket after bucket, -1 for empty places, and the bucket of each batch.

    What is left of a bucket after its full batches goes to the next one, and the rest to the last. How many batches
    each has depends on the counts alone, not on the order.
    """
    rows, shapes, carried = [], [], order[:0]
    for k in range(count):
        waiting = np.concatenate([carried, order[bucket == k]])
        full = len(waiting) // batch_size
        rows.append(waiting[: full * batch_size])
        shapes += [k] * full
        carried = waiting[full * batch_size :]
    if len(carried):
        rows.append(np.pad(carried, (0, batch_size - len(carried)), constant_values=-1))
        shapes.append(count - 1)
    return np.concatenate(rows), np.asarray(shapes, np.int64)
