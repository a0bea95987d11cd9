"""Length bucketing: a batch contains sequences of similar length, padded to one of a few static lengths."""

import abc
import functools
from collections.abc import Callable

import numpy as np

from bertjax.data.batch import BatchSpec, count_batches
from bertjax.data.features import Features
from bertjax.data.hashing import Stream, hash_bits

MAX_LENGTHS = 8


def best_length_count(
    lengths: np.ndarray,
    cost: Callable[[int], float],
    *,
    compile_cost: float,
    max_length: int,
) -> tuple[int, float]:
    """Returns the number of padded lengths that minimizes the cost of computing and compiling, and this cost.

    Args:
      lengths, max_length: See `choose_lengths`.
      cost: A function from a padded length to the total cost of one row over all epochs.
      compile_cost: The cost of compiling one more length, in the same unit.
    """

    def total(count: int) -> float:
        shapes = choose_lengths(lengths, count=count, max_length=max_length)
        return padded_cost(lengths, shapes, cost) + len(shapes) * compile_cost

    totals = {count: total(count) for count in range(1, MAX_LENGTHS + 1)}
    return min(totals.items(), key=lambda item: item[1])


def choose_lengths(lengths: np.ndarray, *, count: int, max_length: int, multiple: int = 4) -> tuple[int, ...]:
    """Chooses at most `count` padded lengths, ascending, that minimize the number of padding tokens.

    Args:
      lengths: int [N], the lengths of the rows, at most `max_length`.
      count: The maximum number of padded lengths.
      max_length: The maximum sequence length of the model.
      multiple: Every padded length is a multiple of this number, or `max_length`.
    """
    # A step is `multiple` tokens.
    rows = np.bincount(-(-np.asarray(lengths) // multiple))  # rows[i]: the number of rows of i steps
    shorter = np.concatenate([[0], np.cumsum(rows)])  # shorter[i]: the number of rows of fewer than i steps
    steps = np.arange(len(rows))
    # best[i]: the minimum total padded length (in steps) of the rows of up to i steps with one padded length. Each
    # pass of the loop allows one more.
    best, choice = steps * shorter[1:], [np.full(len(rows), -1)]
    last_bucket = steps * (shorter[1:] - shorter[1:, None])  # [j, i]: the total padded length of rows of j+1 to i steps
    last_bucket[np.tril_indices(len(rows))] = np.iinfo(np.int64).max // 2
    for _ in range(count - 1):
        table = best[:, None] + last_bucket
        choice.append(np.where(table.min(0) < best, table.argmin(0), -1))
        best = np.minimum(best, table.min(0))
    chosen, i = [], len(rows) - 1
    for last in reversed(choice):
        if i not in chosen:
            chosen.append(i)
        i = last[i] if last[i] >= 0 else i
    return tuple(min(int(i) * multiple, max_length) for i in sorted(chosen) if shorter[i + 1])


def find_buckets(lengths: np.ndarray, shapes: tuple[int, ...]) -> np.ndarray:
    """Returns, for each length, the index of the shortest padded length in `shapes` (ascending) that is long enough."""
    return np.searchsorted(np.asarray(shapes), lengths)


def padded_cost(lengths: np.ndarray, shapes: tuple[int, ...], cost: Callable[[int], float]) -> float:
    """Returns the sum of `cost(padded length)` over rows of these lengths, padded according to `find_buckets`."""
    rows = np.bincount(find_buckets(lengths, shapes), minlength=len(shapes)).tolist()
    return sum(n * cost(shape) for n, shape in zip(rows, shapes, strict=True))


class EpochExamples(abc.ABC):
    """An endless sequence of examples, epoch after epoch. All rows of a batch have the same padded length.

    Example n has index n % B in batch n // B. The seed determines the order of the rows. An epoch has every row once.
    If the batches of an epoch have more rows than the features, the surplus rows are empty and have weight 0.
    """

    def __init__(self, features: Features, *, batch_size: int, shapes: tuple[int, ...], seed: int, pad_id: int):
        self._features = features
        self._seed = seed
        self._pad_id = pad_id
        self.shapes = shapes
        self.batch_size = batch_size
        self.batches = count_batches(len(features), batch_size)  # in an epoch
        self.cycle_length = self.batches * batch_size
        self._order = functools.lru_cache(maxsize=1)(self._make_order)

    @abc.abstractmethod
    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of the epoch [batches·B], -1 for empty rows, and the bucket of each batch [batches]."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of the examples `indices` (int64), a batch or one process's part of a batch."""
        batch = int(indices[0]) // self.batch_size
        if (indices // self.batch_size != batch).any():
            raise ValueError('the examples belong to different batches, which may have different lengths')
        rows, shapes = self._order(batch // self.batches)
        number = batch % self.batches
        chosen = rows[number * self.batch_size + indices % self.batch_size]
        return self._features.batch(chosen, self.shapes[shapes[number]], self._pad_id)

    def abstract_batches(self) -> dict[int, BatchSpec]:
        """Returns {padded length: the shapes and dtypes of a batch} for all padded lengths of an epoch."""
        used = np.unique(self._order(0)[1])  # the same in every epoch
        return {self.shapes[k]: self._features.spec(self.batch_size, self.shapes[k]) for k in used}

    def upcoming_lengths(self, first: int, batches: int) -> list[int]:
        """Returns the distinct padded lengths of the next `batches` batches from example `first`, in order of use."""
        begin = first // self.batch_size
        # Any 2 · `self.batches` consecutive batches contain a complete epoch, which has every length.
        numbers = range(begin, begin + min(batches, 2 * self.batches))
        buckets = [self._order(n // self.batches)[1][n % self.batches] for n in numbers]
        return [self.shapes[bucket] for bucket in dict.fromkeys(buckets)]

    @property
    def mean_length(self) -> float:
        """The mean padded length of a row over an epoch."""
        return float(np.asarray(self.shapes)[self._order(0)[1]].mean())


class BucketedExamples(EpochExamples):
    """Examples in batches of a few padded lengths.

    The rows with the same padded length are a bucket. The rows of a bucket that do not fill a batch move to the next
    longer bucket. So only one batch of an epoch can have empty rows.

    The sequence of padded lengths does not depend on the seed, so runs that differ only in their seed can be trained
    together (training/vmapped_runs.py).
    """

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = hash_bits(self._seed, Stream.TASK_ORDER, np.arange(len(self._features)), epoch)
        order = np.argsort(drawn, kind='stable')
        bucket = find_buckets(self._features.lengths[order], self.shapes)
        rows, shapes = fill_last_batch(order, bucket, len(self.shapes), self.batch_size)
        # This seed is a constant, so that all runs have the same sequence of padded lengths.
        shuffle = np.argsort(hash_bits(0, Stream.BATCH_ORDER, np.arange(self.batches), epoch), kind='stable')
        return rows.reshape(-1, self.batch_size)[shuffle].reshape(-1), shapes[shuffle]


def fill_last_batch(
    order: np.ndarray, bucket: np.ndarray, count: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divides rows into batches, bucket after bucket.

    The rows of a bucket that do not fill a batch go to the next bucket. Rows that remain after the last bucket form one
    more batch of that bucket, padded with empty rows. The order of the rows does not change the number of batches of
    each bucket.

    `order`, int64 [N], contains the rows. `bucket`, int64 [N], has the bucket of each row in `order`, below `count`.

    Returns:
      The rows of all batches, int64 [batches·B], -1 for empty rows, and the bucket of each batch, int64 [batches].
    """
    rows, shapes, remainder = [], [], order[:0]
    for k in range(count):
        pending = np.concatenate([remainder, order[bucket == k]])
        full = len(pending) // batch_size
        rows.append(pending[: full * batch_size])
        shapes += [k] * full
        remainder = pending[full * batch_size :]
    if len(remainder):
        rows.append(np.pad(remainder, (0, batch_size - len(remainder)), constant_values=-1))
        shapes.append(count - 1)
    return np.concatenate(rows), np.asarray(shapes, np.int64)
