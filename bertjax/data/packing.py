"""Packed pre-training rows by number. A row contains several examples that do not attend to each other.

The packing of a whole plan is stored on disk beside the plan. Examples are packed block by block with best fit
decreasing (Johnson 1974, "Fast algorithms for bin packing"): the largest example comes first, and each example goes to
the fullest row that has room for it. Packing needs only the lengths of the examples, which depend only on the plan, the
seed and the phase. So every process gets the same rows.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np

from bertjax.data.batch import max_examples, ordinals, padding_rows, pretraining_batch_spec
from bertjax.data.hashing import Stream
from bertjax.data.masking import prediction_budgets
from bertjax.data.plans import load_or_make, locate_in_plans
from bertjax.data.pretraining import PretrainingExamples

# An input of the hash in the name of every packing file. Increase it with any change to the result of packing.
PACKING_VERSION = 1
# The number of examples in a block. On English Wikipedia at S=512, blocks of 1,024, 4,096 and 16,384 examples give rows
# with 99.6, 99.8 and 99.9 % real (not padding) positions.
BLOCK = 4096
# A batch is made in parts of this many positions, because each of its examples first takes a whole row.
_PART_POSITIONS = 1 << 17


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

    def row(self, number: int) -> np.ndarray:
        """Returns the members of a row."""
        return self.members[self.starts[number] : self.starts[number + 1]]


def load_packings(examples: PretrainingExamples) -> list[Packing]:
    """Loads the packing of each plan from `examples.cache_dir`, or makes it and stores it there."""
    rules = [PACKING_VERSION, BLOCK, examples.identity, examples.max_predictions, examples.masking.rate]
    name = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]
    packings, begin = [], 0
    for number, length in enumerate(examples.plan_lengths):
        make = functools.partial(pack_plan, examples, begin, length)
        array, facts = load_or_make(examples.cache_dir, f'packing-{name}-{number:03d}', make)
        bounds = facts['rows'] + 1
        packings.append(Packing(array[bounds:], array[:bounds], facts['real']))
        begin += length
    return packings


def pack_plan(examples: PretrainingExamples, begin: int, length: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Packs the examples `begin` to `begin + length - 1` of the first cycle. Returns the content of the file."""
    members, starts, packed, real = [], [np.zeros(1, np.int64)], 0, 0
    for first in range(0, length, BLOCK):
        block = np.arange(first, min(first + BLOCK, length))
        tokens, maskable = examples.lengths(begin + block)
        order, row = best_fit(_sizes(examples, tokens, maskable), examples.seq_len)
        members.append(block[order])
        starts.append(packed + np.cumsum(np.bincount(row)))
        packed, real = packed + len(block), real + int(tokens.sum())
    return np.concatenate([*starts, *members]), {'rows': sum(map(len, starts)) - 1, 'real': real}


def _sizes(examples: PretrainingExamples, tokens: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Returns the size of each example, int64 [N], at most S.

    A row may have S tokens, P predictions and E = `max_examples(S)` examples. The size of an example is the maximum of
    its tokens, S/P times its predictions, and S/E. A row obeys all limits if its examples' sizes sum to at most S.
    """
    S, P = examples.seq_len, examples.max_predictions
    for_predictions = -(-prediction_budgets(maskable, examples.masking, P) * S // P)
    return np.maximum(np.maximum(tokens, for_predictions), -(-S // max_examples(S)))


class PackedExamples:
    """The examples of one phase in packed rows: row m is a pure function of (seed, phase, m).

    A cycle goes through the plans of `examples` in order. The order of the rows of a plan is a permutation that depends
    on (seed, phase, cycle, plan). In the first cycle, the rows contain the same examples as without packing, but masks
    never exceed the budget. Later cycles repeat these rows, with new masks unless the masks are static.

    Args:
      examples: The examples to pack. A packed row has the same S and P as one of these examples.
    """

    def __init__(self, examples: PretrainingExamples):
        self._examples = examples

    @functools.cached_property
    def _packings(self) -> list[Packing]:
        return load_packings(self._examples)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(packing.starts) - 1 for packing in self._packings])

    @property
    def cycle_length(self) -> int:
        """The number of rows in all plans."""
        return int(self._ends[-1])

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Locates the examples of the rows `indices`, int64 [B], not negative.

        Returns:
          Three int64 [X] arrays with one entry per example, in the order of the rows: the index of the row in
          `indices`, the number of the example in the first cycle, and the cycle of the masks.
        """
        cycle, plan, row, _ = locate_in_plans(indices, self._ends, self._examples.phase_seed, Stream.ROW_ORDER)
        begins = np.cumsum([0, *self._examples.plan_lengths])
        numbers = [begins[p] + self._packings[p].row(r) for p, r in zip(plan.tolist(), row.tolist(), strict=True)]
        row_index = np.repeat(np.arange(len(row)), [len(members) for members in numbers])
        return row_index, np.concatenate(numbers), cycle[row_index]

    def batch(self, indices: np.ndarray, rates: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the rows `indices` (int64 [B]) as in `batch.py`. For `rates`, see `PretrainingExamples.batch`."""
        size = max(1, _PART_POSITIONS // self._examples.seq_len)
        parts = [slice(first, first + size) for first in range(0, len(indices), size)]
        made = [self._make(indices[part], None if rates is None else rates[part]) for part in parts]
        return {name: np.concatenate([rows[name] for rows in made]) for name in made[0]}

    def _make(self, indices: np.ndarray, rates: np.ndarray | None) -> dict[str, np.ndarray]:
        row_index, numbers, cycle = self.locate(indices)
        rates = None if rates is None else rates[row_index]
        single = self._examples.batch(numbers, rates, cycle)  # rows of one example, [X, S]
        shape = (len(indices), self._examples.seq_len, self._examples.max_predictions)
        spec = pretraining_batch_spec(*shape, packed=True, causal=self._examples.masking.causal_share > 0)
        rows = padding_rows(spec, self._examples.vocabulary.pad_id)
        real, used = single['attention_mask'] > 0, single['masked_weights'] > 0
        tokens, predictions = np.count_nonzero(real, axis=1), np.count_nonzero(used, axis=1)
        ordinal = ordinals(np.bincount(row_index, minlength=len(indices)))
        begin = starts_in_rows(tokens, row_index)
        # A packed row begins with the tokens of its examples in order. Boolean indexing of `single` returns them in the
        # same order. The same holds for the predictions.
        mask = _prefix_mask(row_index, tokens, rows['input_ids'].shape)
        rows['attention_mask'] = mask.astype(np.int32)
        rows['sequence_ids'][mask] = np.repeat((ordinal + 1).astype(np.int32), tokens)
        rows['position_ids'][mask] = ordinals(tokens)
        for name in {'input_ids', 'segment_ids', 'causal'} & rows.keys():
            rows[name][mask] = single[name][real]
        mask = _prefix_mask(row_index, predictions, rows['masked_ids'].shape)
        rows['masked_weights'] = mask.astype(np.float32)
        rows['masked_ids'][mask] = single['masked_ids'][used]
        rows['masked_positions'][mask] = (single['masked_positions'] + begin[:, None])[used]
        rows['cls_positions'][row_index, ordinal] = begin
        for name in ('nsp_labels', 'nsp_weights'):
            rows[name][row_index, ordinal] = single[name]
        return rows

    @functools.cached_property
    def report(self) -> dict[str, object]:
        """The report of the examples, but `real_positions` is for packed rows.

        Further entries are `unpacked_real_positions` (the share without packing), `rows_per_plan`, and
        `examples_per_row` (a mean).
        """
        unpacked, rows = self._examples.report, self.cycle_length
        return {
            **unpacked,
            'real_positions': sum(packing.real for packing in self._packings) / (rows * self._examples.seq_len),
            'unpacked_real_positions': unpacked['real_positions'],
            'rows_per_plan': rows / len(self._packings),
            'examples_per_row': self._examples.cycle_length / rows,
        }


def _prefix_mask(row_index: np.ndarray, sizes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Returns bool [B, S], True for the first n positions of a row, where n is the sum of the row's `sizes`."""
    return np.arange(shape[1]) < np.bincount(row_index, sizes, shape[0])[:, None]


def best_fit(sizes: np.ndarray, capacity: int, max_items: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Packs items into rows by best fit decreasing.

    Args:
      sizes: int64 [N], each from 1 to `capacity`, the capacity of a row.
      max_items: The maximum number of items in a row, at least 2; None for no limit.

    Returns:
      order: int64 [N], the indices of the items, row by row.
      row: int64 [N], the row of each item in `order`.
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
    by_row = np.argsort(row_index, kind='stable')
    return order[by_row], row_index[by_row]


def starts_in_rows(sizes: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Returns where each item starts in its row, int64 [N]. `row`, ascending, is the row of each item."""
    preceding = np.cumsum(sizes) - sizes
    return preceding - np.maximum.accumulate(np.where(np.diff(row, prepend=-1) > 0, preceding, 0))
