"""Packs the examples of a whole plan into rows, and stores the packing on disk beside the plan.

Examples are packed block by block with best fit decreasing (Johnson 1974, "Fast algorithms for bin packing"). The
largest example comes first, and each example goes to the fullest row that has room for it. Packing needs only the
lengths of the examples, which depend only on the plan, the seed and the phase. So every process gets the same rows.
"""

import dataclasses
import functools
import hashlib
import json

import numpy as np

from bertjax.data.batch import max_examples, ordinals
from bertjax.data.masking import prediction_budgets
from bertjax.data.plans import load_or_make
from bertjax.data.pretraining import PretrainingExamples

# An input of the hash in the name of every packing file. Increase it with any change to the result of packing.
PACKING_VERSION = 1
# The number of examples in a block. On English Wikipedia at S=512, blocks of 1,024, 4,096 and 16,384 examples give rows
# with 99.6, 99.8 and 99.9 % real (not padding) positions.
BLOCK = 4096


@dataclasses.dataclass(frozen=True)
class Packing:
    """The rows of one plan.

    Attributes:
      members: int64 [N], the examples of each row, one row after the other. Each entry is the number of an example in
        the first cycle, counted from the start of the plan.
      starts: int64 [R + 1], the start of each row in `members`; the last entry is N.
      real: The total number of positions that are not padding.
    """

    members: np.ndarray
    starts: np.ndarray
    real: int

    @property
    def rows(self) -> int:
        """R, the number of rows."""
        return len(self.starts) - 1


def load_packings(examples: PretrainingExamples) -> list[Packing]:
    """Loads the packing of each plan from `examples.cache_dir`, or makes it and stores it there."""
    rules = [PACKING_VERSION, BLOCK, examples.identity, examples.max_predictions, examples.masking.rate]
    name = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]
    packings, begin = [], 0
    for number, length in enumerate(examples.plan_lengths):
        make = functools.partial(_pack, examples, begin, length)
        packings.append(load_or_make(examples.cache_dir, f'packing-{name}-{number:03d}', _packing, make))
        begin += length
    return packings


def _pack(examples: PretrainingExamples, begin: int, length: int) -> tuple[np.ndarray, dict]:
    packing = pack_plan(examples, begin, length)
    return np.concatenate([packing.starts, packing.members]), {'rows': packing.rows, 'real': packing.real}


def _packing(array: np.ndarray, facts: dict) -> Packing:
    bounds = facts['rows'] + 1
    return Packing(array[bounds:], array[:bounds], facts['real'])


def pack_plan(examples: PretrainingExamples, begin: int, length: int) -> Packing:
    """Packs the examples `begin` to `begin + length - 1` of the first cycle."""
    members, starts, packed, real = [], [np.zeros(1, np.int64)], 0, 0
    for first in range(0, length, BLOCK):
        block = np.arange(first, min(first + BLOCK, length))
        tokens, maskable = examples.lengths(begin + block)
        order, ends = best_fit(_sizes(examples, tokens, maskable), examples.seq_len)
        members.append(block[order])
        starts.append(packed + ends)
        packed, real = packed + len(block), real + int(tokens.sum())
    return Packing(np.concatenate(members), np.concatenate(starts), real)


def _sizes(examples: PretrainingExamples, tokens: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Returns the size of each example, int64 [N], at most S.

    A row may have S tokens, P predictions and E = `max_examples(S)` examples. The size of an example is the maximum of
    its tokens, S/P times its predictions, and S/E. So a row obeys all three limits if its sizes sum to at most S.
    """
    S, P = examples.seq_len, examples.max_predictions
    for_predictions = -(-prediction_budgets(maskable, examples.masking, P) * S // P)
    return np.maximum(np.maximum(tokens, for_predictions), -(-S // max_examples(S)))


def best_fit(sizes: np.ndarray, capacity: int, max_items: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Packs items into rows by best fit decreasing.

    Args:
      sizes: int64 [N], each from 1 to `capacity`, the capacity of a row.
      max_items: The maximum number of items in a row, at least 2; None for no limit.

    Returns:
      order: int64 [N], the indices of the items, row by row.
      ends: int64 [R], the end of each row in `order`.
    """
    order = np.argsort(-sizes, kind='stable')
    row_index, rows, counts = [], 0, []
    rows_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # remaining room -> rows
    room_bits = 0  # bit r is set if a row has room for exactly r
    for size in sizes[order].tolist():
        fitting = room_bits >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1  # the lowest bit
            row = rows_by_room[room].pop()
            room_bits ^= (not rows_by_room[room]) << room
        else:
            row, room, rows = rows, capacity, rows + 1
            counts.append(0)
        row_index.append(row)
        counts[row] += 1
        if counts[row] == max_items:
            continue
        rows_by_room[room - size].append(row)
        room_bits |= 1 << (room - size)
    row_index = np.array(row_index, np.int64)
    return order[np.argsort(row_index, kind='stable')], np.cumsum(np.bincount(row_index))


def rows_of_items(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of each item and its index in the row, integer [N] each. Items are in the order of `best_fit`."""
    counts = np.diff(ends, prepend=0)
    return np.repeat(np.arange(len(ends)), counts), ordinals(counts)


def starts_in_rows(sizes: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
    """Returns where each item starts in its row, int64 [N]. `ordinal` is the index of each item in its row."""
    preceding = np.cumsum(sizes) - sizes
    return preceding - np.maximum.accumulate(np.where(ordinal == 0, preceding, 0))
