"""Makes packed pre-training rows by number. A row contains several examples that do not attend to each other."""

import functools

import numpy as np

from bertjax.data.batch import make_in_chunks, max_examples, ordinals, padding_rows, pretraining_batch_spec
from bertjax.data.hashing import Stream
from bertjax.data.packing import Packing, load_packings, starts_in_rows
from bertjax.data.plans import locate_in_plans
from bertjax.data.pretraining import PretrainingExamples


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
        self._spec = functools.partial(
            pretraining_batch_spec,
            seq_len=examples.seq_len,
            max_predictions=examples.max_predictions,
            packed=True,
            causal=examples.masking.causal_share > 0,
        )

    @functools.cached_property
    def _packings(self) -> list[Packing]:
        return load_packings(self._examples)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([packing.rows for packing in self._packings])

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
        first, count = np.empty_like(row), np.empty_like(row)
        for number in np.unique(plan).tolist():
            in_plan, starts = plan == number, self._packings[number].starts
            first[in_plan] = starts[row[in_plan]]
            count[in_plan] = starts[row[in_plan] + 1] - first[in_plan]
        row_index = np.repeat(np.arange(len(row)), count)
        member = first[row_index] + ordinals(count)
        begins = np.cumsum([0, *self._examples.plan_lengths])
        numbers = np.empty_like(member)
        for number in np.unique(plan).tolist():
            in_plan = plan[row_index] == number
            numbers[in_plan] = begins[number] + self._packings[number].members[member[in_plan]]
        return row_index, numbers, cycle[row_index]

    def batch(self, indices: np.ndarray, rates: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the rows `indices` (int64 [B]) as in `batch.py`. For `rates`, see `PretrainingExamples.batch`."""
        return make_in_chunks(self._batch, np.asarray(indices, np.int64), self._examples.seq_len, rates)

    def _batch(self, indices: np.ndarray, rates: np.ndarray | None) -> dict[str, np.ndarray]:
        row_index, numbers, cycle = self.locate(indices)
        rates = None if rates is None else rates[row_index]
        single = self._examples.batch_with_new_masks(numbers, cycle, rates)  # rows of one example, [X, S]
        rows = padding_rows(self._spec(len(indices)), self._examples.vocabulary.pad_id)
        real, used = single['attention_mask'] > 0, single['masked_weights'] > 0
        tokens, predictions = np.count_nonzero(real, axis=1), np.count_nonzero(used, axis=1)
        ordinal = ordinals(np.bincount(row_index, minlength=len(indices)))
        begin = starts_in_rows(tokens, ordinal)
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

        Further entries are `unpacked_real_positions` (the share without packing), `rows_per_plan`, `examples_per_row`
        (a mean), and `most_examples` (the result of `max_examples`).
        """
        unpacked, rows = self._examples.report, self.cycle_length
        return {
            **unpacked,
            'real_positions': sum(packing.real for packing in self._packings) / (rows * self._examples.seq_len),
            'unpacked_real_positions': unpacked['real_positions'],
            'rows_per_plan': rows / len(self._packings),
            'examples_per_row': self._examples.cycle_length / rows,
            'most_examples': max_examples(self._examples.seq_len),
        }


def _prefix_mask(row_index: np.ndarray, sizes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Returns bool [B, S], True for the first n positions of a row, where n is the sum of the row's `sizes`."""
    return np.arange(shape[1]) < np.bincount(row_index, sizes, shape[0])[:, None]
