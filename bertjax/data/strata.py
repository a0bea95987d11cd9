"""Batches of which each has short and long rows in the same measure, so that all are packed in one way, in one shape.

The rows of an epoch, by length, are B strata of as many rows as there are batches; each batch has one of each. So the
i-th shortest row of any batch is no longer than stratum i: it has a place of its own, for as many tokens, before any
batch is looked at.
"""

from collections.abc import Callable

import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.data.features import Features
from bertjax.data.hashing import Stream, hash_bits
from bertjax.data.length_buckets import choose_lengths, find_buckets
from bertjax.data.packing import best_fit, rows_of, starts_in_rows
from bertjax.model.layout import Layout

_MULTIPLE = 4  # of which the length of rows is one


def batches_of(rows: int, batch_size: int) -> int:
    """Batches of an epoch of so many rows."""
    return -(-rows // batch_size)


def strata_of_rows(batch_size: int) -> np.ndarray:
    """int64 [B], the stratum, by length, that is in each row of a batch.

    Devices have as many rows each, one after the other, and parts of an accumulation every A-th: powers of two in
    either way get about the same lengths.
    """
    twos = (batch_size & -batch_size).bit_length() - 1
    high, low = -(-twos // 2), twos // 2
    row = np.arange(batch_size)
    middle = (row >> low) % (batch_size >> twos)
    bits = [(row // (batch_size >> high)) >> (high - 1 - i) & 1 for i in range(high)]  # the highest first
    ends = [row >> i & 1 for i in range(low)]  # the lowest first
    alternate = [x for pair in zip(bits, ends, strict=False) for x in pair] + bits[len(ends) :]
    return (middle << twos) + sum(bit << i for i, bit in enumerate(alternate))


def slot_capacities(lengths: np.ndarray, batch_size: int, shards: int = 1, parts: int = 1) -> np.ndarray:
    """int64 [N], the most tokens of each row that a device computes at a time: B/(D·A) rows of a batch.

    Args:
      lengths: int64 [rows], of all rows.
      batch_size: B.
      shards: D, the devices over which a batch is split.
      parts: A, in which it is accumulated.
    """
    padded = np.pad(np.sort(lengths), (batches_of(len(lengths), batch_size) * batch_size - len(lengths), 0))
    longest = padded.reshape(batch_size, -1).max(1)[strata_of_rows(batch_size)]  # [B]
    return np.maximum(longest.reshape(shards, -1, parts).max((0, 2)), 1)


def layout_cost(layout: Layout, cost: Callable[[int], float], another: float) -> float:
    """See `choose_layout`."""
    return sum(rows * cost(length) for rows, length in layout.row_groups) + another * (len(layout.row_groups) - 1)


def choose_layout(
    capacities: np.ndarray,
    choices: int,
    *,
    cost: Callable[[int], float],
    another: float,
    most: int,
    longest: int,
    shared: bool,
) -> Layout:
    """The layout that costs least: rows of one length with several sequences, or rows of a few lengths with one each.

    Args:
      capacities: see `slot_capacities`.
      choices: C, the sequences of a row of the batch.
      cost: of a row of so many tokens.
      another: the cost of each further group.
      most: groups.
      longest: sequence that the model takes.
      shared: whether rows may have several sequences.
    """
    each = np.repeat(capacities, choices)
    layouts = [_one_per_row(each, count, longest) for count in range(1, most + 1)]
    if shared:
        # Beyond twice the longest, longer rows cost more in attention than they save in padding.
        first = -(-int(each.max()) // _MULTIPLE) * _MULTIPLE
        layouts += [_several_per_row(each, length) for length in range(first, 2 * first + 1, _MULTIPLE)]
    return min(layouts, key=lambda layout: layout_cost(layout, cost, another))


def _one_per_row(capacities: np.ndarray, count: int, longest: int) -> Layout:
    """Rows of at most `count` lengths."""
    shapes = choose_lengths(capacities, count=count, longest=longest, multiple=_MULTIPLE)
    lengths = np.asarray(shapes)[find_buckets(capacities, shapes)]
    order = np.argsort(lengths, kind='stable')
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    groups = tuple((int((lengths == length).sum()), length) for length in shapes)
    return Layout(groups, tuple(zip(starts.tolist(), lengths.tolist(), strict=True)))


def _several_per_row(capacities: np.ndarray, length: int) -> Layout:
    """As few rows of this length as hold all."""
    order, ends = best_fit(capacities, length)
    row, ordinal = rows_of(ends)
    starts = np.empty_like(capacities)
    starts[order] = row * length + starts_in_rows(capacities[order], ordinal)
    return Layout(((len(ends), length),), tuple(zip(starts.tolist(), capacities.tolist(), strict=True)))


class StratifiedExamples:
    """Endless examples, epoch after epoch; each batch has one row of each stratum, in one shape.

    Example n sits in row n % B of batch n // B; which record it is depends on (seed, n), and on B. An epoch sees every
    row of the features once. Where they are fewer than its batches have places, the shortest stratum has empty ones,
    which weigh nothing.
    """

    def __init__(self, features: Features, *, batch_size: int, length: int, seed: int, pad_id: int):
        """`length`: S, at least that of the longest row."""
        self._features, self._length, self._seed, self._pad_id = features, length, seed, pad_id
        self.batch_size = batch_size
        self.batches = batches_of(len(features), batch_size)  # of an epoch
        self.cycle_length = self.batches * batch_size
        self._epoch: tuple[int, np.ndarray] | None = None

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """int64 [B'] examples -> arrays of B' rows."""
        return self._features.batch(self._rows(indices), self._length, self._pad_id)

    def abstract_batches(self) -> dict[int, BatchSpec]:
        """{S: shapes and dtypes of a batch}."""
        return {self._length: self._features.spec(self.batch_size, self._length)}

    def records(self, indices: np.ndarray) -> np.ndarray:
        """The record that each example is of, -1 for an empty place."""
        rows = self._rows(indices)
        return np.where(rows < 0, -1, self._features.record[rows])

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        epochs, places = np.divmod(np.asarray(indices, np.int64), self.cycle_length)
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            found[epochs == epoch] = self._order(epoch)[places[epochs == epoch]]
        return found

    def _order(self, epoch: int) -> np.ndarray:
        """The epoch's rows [batches·B], -1 for empty places."""
        kept = self._epoch  # one look: another thread may put another epoch there
        if kept is None or kept[0] != epoch:
            count, empty = len(self._features), self.cycle_length - len(self._features)
            drawn = hash_bits(self._seed, Stream.TASK_ORDER, np.arange(count), epoch)
            # Of equal length, any row may be in either of two neighbouring strata.
            by_length = np.pad(np.lexsort((drawn, self._features.lengths)), (empty, 0), constant_values=-1)
            strata = by_length.reshape(self.batch_size, self.batches)
            places = np.arange(self.cycle_length).reshape(strata.shape)
            mixed = np.argsort(hash_bits(self._seed, Stream.BATCH_ORDER, places, epoch), axis=1, kind='stable')
            rows = np.take_along_axis(strata, mixed, axis=1)[strata_of_rows(self.batch_size)]
            kept = self._epoch = epoch, rows.T.reshape(-1)
        return kept[1]
