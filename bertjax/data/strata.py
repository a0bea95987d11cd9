"""Stratified batches for fine-tuning. All batches have the same mix of short and long rows, so one layout fits them.

The rows of an epoch are sorted by length and cut into B strata. A batch has one row of each stratum. So a layout fits
every batch if it has a slot for the longest row of each stratum.
"""

from collections.abc import Callable

import numpy as np

from bertjax.data.batch import count_batches
from bertjax.data.hashing import Stream, hash_bits
from bertjax.data.length_buckets import EpochExamples, choose_lengths, find_buckets
from bertjax.data.packing import best_fit, starts_in_rows
from bertjax.model.layout import Layout

_MULTIPLE = 4  # every row length is a multiple of this number, or the maximum sequence length


def row_strata(batch_size: int) -> np.ndarray:
    """Returns the stratum of each row of a batch, int64 [B]. Stratum 0 has the shortest rows.

    A device gets consecutive rows of a batch. With A accumulation steps, each step gets every A-th row. If the numbers
    of devices and steps are powers of two far below √B, all devices and steps get about the same mix of lengths.
    """
    twos = (batch_size & -batch_size).bit_length() - 1
    high, low = -(-twos // 2), twos // 2
    row = np.arange(batch_size)
    middle = (row >> low) % (batch_size >> twos)
    bits = [(row // (batch_size >> high)) >> (high - 1 - i) & 1 for i in range(high)]  # the highest bit first
    ends = [row >> i & 1 for i in range(low)]  # the lowest bit first
    alternate = [x for pair in zip(bits, ends, strict=False) for x in pair] + bits[len(ends) :]
    return (middle << twos) + sum(bit << i for i, bit in enumerate(alternate))


def row_sizes(lengths: np.ndarray) -> np.ndarray:
    """Returns a sort key for each row, int64 [rows]. It orders rows by longest sequence, then by number of tokens.

    `lengths`, int64 [rows, C], are the lengths of the C sequences of each row.
    """
    return lengths.max(1) * (lengths.sum(1).max() + 1) + lengths.sum(1)


def slot_capacities(lengths: np.ndarray, batch_size: int, shards: int = 1, parts: int = 1) -> np.ndarray:
    """Returns each slot's maximum sequence length over all batches, devices and steps, int64 [N, C], N = B/(D·A).

    Args:
      lengths: int64 [rows, C], the lengths of the sequences of all rows.
      batch_size: B.
      shards: D, the number of devices over which a batch is split.
      parts: A, the number of accumulation steps.
    """
    empty = count_batches(len(lengths), batch_size) * batch_size - len(lengths)
    padded = np.pad(lengths, ((empty, 0), (0, 0)))
    sizes = row_sizes(padded)
    order = np.argsort(sizes, kind='stable')
    _, first, number = np.unique(sizes[order], return_index=True, return_inverse=True)
    longest = np.maximum.reduceat(padded[order], first)  # [distinct sizes, C]
    # Rows of equal size are shuffled, so such a row can be in any stratum that has rows of this size.
    strata = number.reshape(batch_size, -1)
    longest = np.stack([longest[begin : end + 1].max(0) for begin, end in strata[:, [0, -1]]])  # [B, C]
    longest = longest[row_strata(batch_size)].reshape(shards, -1, parts, lengths.shape[1])
    return np.maximum(longest.max((0, 2)), 1)


def layout_cost(layout: Layout, cost: Callable[[int], float], group_cost: float) -> float:
    """Returns the cost of a layout. For `cost` and `group_cost`, see `choose_layout`."""
    return sum(rows * cost(length) for rows, length in layout.row_groups) + group_cost * (len(layout.row_groups) - 1)


def choose_layout(
    capacities: np.ndarray,
    *,
    cost: Callable[[int], float],
    group_cost: float,
    max_groups: int,
    max_length: int,
    shared: bool,
) -> Layout:
    """Returns the cheapest layout.

    Layouts with one sequence per row have rows of up to `max_groups` different lengths. If `shared`, layouts with
    several sequences per row are tried too. All rows of such a layout have the same length.

    Args:
      capacities: int64 [N, C], see `slot_capacities`.
      cost: A function from the length of a row in tokens to its cost.
      group_cost: The cost of each group of rows after the first. The rows of a group have the same length.
      max_groups: The maximum number of groups.
      max_length: The maximum sequence length of the model.
      shared: Whether a row of the layout may have several sequences.
    """
    slots = capacities.reshape(-1)
    layouts = [_one_per_row(slots, count, max_length) for count in range(1, max_groups + 1)]
    if shared:
        # Rows of more than twice the longest slot cost more in attention than they save in padding.
        first = -(-int(slots.max()) // _MULTIPLE) * _MULTIPLE
        layouts += [_several_per_row(slots, length) for length in range(first, 2 * first + 1, _MULTIPLE)]
    return min(layouts, key=lambda layout: layout_cost(layout, cost, group_cost))


def _one_per_row(capacities: np.ndarray, count: int, max_length: int) -> Layout:
    """Returns the layout with one sequence per row. The rows have at most `count` different lengths."""
    shapes = choose_lengths(capacities, count=count, max_length=max_length, multiple=_MULTIPLE)
    lengths = np.asarray(shapes)[find_buckets(capacities, shapes)]
    order = np.argsort(lengths, kind='stable')
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    groups = tuple((int((lengths == length).sum()), length) for length in shapes)
    return Layout(groups, tuple(zip(starts.tolist(), lengths.tolist(), strict=True)))


def _several_per_row(capacities: np.ndarray, length: int) -> Layout:
    """Returns the layout with all sequences in rows of the given length, packed by best fit decreasing."""
    order, row = best_fit(capacities, length)
    starts = np.empty_like(capacities)
    starts[order] = row * length + starts_in_rows(capacities[order], row)
    return Layout(((int(row[-1]) + 1, length),), tuple(zip(starts.tolist(), capacities.tolist(), strict=True)))


class StratifiedExamples(EpochExamples):
    """Examples in batches with a row of each stratum, all of one padded length. Empty rows count as the shortest."""

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        count, empty = len(self._features), self.cycle_length - len(self._features)
        drawn = hash_bits(self._seed, Stream.TASK_ORDER, np.arange(count), epoch)
        # Rows of equal size are shuffled, also between strata.
        sizes = row_sizes(self._features.lengths_of_choices)
        by_size = np.pad(np.lexsort((drawn, sizes)), (empty, 0), constant_values=-1)
        strata = by_size.reshape(self.batch_size, self.batches)
        slots = np.arange(self.cycle_length).reshape(strata.shape)
        shuffle = np.argsort(hash_bits(self._seed, Stream.BATCH_ORDER, slots, epoch), axis=1, kind='stable')
        rows = np.take_along_axis(strata, shuffle, axis=1)[row_strata(self.batch_size)].T.reshape(-1)
        return rows, np.zeros(self.batches, np.int64)
