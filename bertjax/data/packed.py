"""Row number -> packed row of a pre-training batch: several examples in one row, which nothing joins but the row."""

import functools

import numpy as np

from bertjax.data.batch import make_in_chunks, max_examples, padding_rows, pretraining_batch_spec
from bertjax.data.hashing import Stream
from bertjax.data.packing import Packing, load_packings, ordinals, starts_in_rows
from bertjax.data.plans import locate_in_plans
from bertjax.data.pretraining import PretrainingExamples


class PackedExamples:
    """The examples of one phase in packed rows, by number: row m is a pure function of (seed, phase, m).

    The numbers run through the plans as those of examples do; within a plan the rows come in an order permuted by
    (seed, phase, cycle, plan). In the first cycle they hold the very examples that are there without packing. In later
    ones the same pairs are together again with masks of their own, and a B from elsewhere is from the same place again:
    what fits together is decided once.

    Args:
      examples: what is packed, in its own shape: rows have as many positions, and as many predictions, as one of them
        may have.
    """

    def __init__(self, examples: PretrainingExamples):
        self._examples = examples
        self._spec = functools.partial(
            pretraining_batch_spec,
            seq_len=examples.seq_len,
            max_predictions=examples.max_predictions,
            packed=True,
        )

    @functools.cached_property
    def _packings(self) -> list[Packing]:
        return load_packings(self._examples)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([packing.rows for packing in self._packings])

    @property
    def cycle_length(self) -> int:
        """How many rows all plans hold together."""
        return int(self._ends[-1])

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is in these rows.

        Args:
          indices: int64 [B], none negative.

        Returns:
          int64 [X] each, in order of the rows, and in each row in that of its examples: the place in `indices` of the
          row that an example is in, its number in the first cycle, and the cycle of its masks.
        """
        cycle, plan, row, _ = locate_in_plans(indices, self._ends, self._examples.phase_seed, Stream.ROW_ORDER)
        first, count = np.empty_like(row), np.empty_like(row)
        for number in np.unique(plan).tolist():
            here, starts = plan == number, self._packings[number].starts
            first[here] = starts[row[here]]
            count[here] = starts[row[here] + 1] - first[here]
        which = np.repeat(np.arange(len(row)), count)
        member = first[which] + ordinals(count)
        begins = np.cumsum([0, *self._examples.plan_lengths])
        numbers = np.empty_like(member)
        for number in np.unique(plan).tolist():
            here = plan[which] == number
            numbers[here] = begins[number] + self._packings[number].members[member[here]]
        return which, numbers, cycle[which]

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of these numbers (int64 [B]), as `batch.py` describes them."""
        return make_in_chunks(self._batch, np.asarray(indices, np.int64), self._examples.seq_len)

    def _batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        which, numbers, cycle = self.locate(indices)
        single = self._examples.batch_with_new_masks(numbers, cycle)  # rows of one example, [X, S]
        rows = padding_rows(self._spec(len(indices)), self._examples.vocabulary.pad_id)
        real, used = single['attention_mask'] > 0, single['masked_weights'] > 0
        tokens, predictions = np.count_nonzero(real, axis=1), np.count_nonzero(used, axis=1)
        ordinal = ordinals(np.bincount(which, minlength=len(indices)))
        begin = starts_in_rows(tokens, ordinal)
        # Tokens and predictions of a row are together at its beginning, in the order of its examples: what is chosen
        # from all of them one after the other lands where it belongs.
        at = _filled(which, tokens, rows['input_ids'].shape)
        rows['attention_mask'] = at.astype(np.int32)
        rows['sequence_ids'][at] = np.repeat((ordinal + 1).astype(np.int32), tokens)
        rows['position_ids'][at] = ordinals(tokens)
        for name in ('input_ids', 'segment_ids'):
            rows[name][at] = single[name][real]
        at = _filled(which, predictions, rows['masked_ids'].shape)
        rows['masked_weights'] = at.astype(np.float32)
        rows['masked_ids'][at] = single['masked_ids'][used]
        rows['masked_positions'][at] = (single['masked_positions'] + begin[:, None])[used]
        rows['cls_positions'][which, ordinal] = begin
        for name in ('nsp_labels', 'nsp_weights'):
            rows[name][which, ordinal] = single[name]
        return rows

    @functools.cached_property
    def report(self) -> dict[str, object]:
        """That of the examples, in which `real_positions` is of the rows, and more, over all plans.

        `unpacked_real_positions`: without packing; `rows_per_plan`, and `examples_per_row`, of at most `max_examples`.
        """
        alone, rows = self._examples.report, self.cycle_length
        return {
            **alone,
            'real_positions': sum(packing.real for packing in self._packings) / (rows * self._examples.seq_len),
            'unpacked_real_positions': alone['real_positions'],
            'rows_per_plan': rows / len(self._packings),
            'examples_per_row': self._examples.cycle_length / rows,
            'most_examples': max_examples(self._examples.seq_len),
        }


def _filled(which: np.ndarray, sizes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Bool `shape`: the first places of each row, as many as the sizes of its examples together."""
    return np.arange(shape[1]) < np.bincount(which, sizes, shape[0])[:, None]
