"""Makes pre-training examples by number. Example n is a function of (seed, phase, n) (docs/architecture.md, law 1)."""

import dataclasses
import functools
import pathlib

import numpy as np

from bertjax.corpus.store import StoreSplit
from bertjax.data import rows
from bertjax.data.hashing import Stream, hash_int, uniform
from bertjax.data.masking import MaskOptions, mask_batch
from bertjax.data.pairs import CHUNK, PairOptions, PairPlan, check_split, draw_target_lengths
from bertjax.data.plans import WALK_VERSION, load_plans, locate_in_plans
from bertjax.text.special import is_unused
from bertjax.text.tokenizer_base import Tokenizer

# `report` measures lengths on at most this many examples, evenly spaced over a cycle.
_SAMPLE = 8192


@dataclasses.dataclass(frozen=True)
class _Slots:
    """The locations of B examples in the plans, as arrays [B]. `key` seeds an example's random draws."""

    cycle: np.ndarray
    plan: np.ndarray
    slot: np.ndarray
    chunks: np.ndarray
    document: np.ndarray
    key: np.ndarray


class PretrainingExamples:
    """The examples of one phase, numbered 0, 1, 2, ... without end.

    A plan divides the text into chunks. Each chunk is a slot of the plan and gives one example. A cycle goes through
    all plans, one after the other, and uses each slot once. The order of the slots of a plan is a permutation that
    depends on (seed, phase, cycle, plan). An example depends only on its number, `seed`, `phase`, the text, the
    vocabulary and the options.

    Args:
      split: The training or held-out split of a token store.
      seq_len, max_predictions: The length S of a row in tokens, and the maximum number P of predicted positions in it.
      seed, phase: Integers that determine all random draws.
      cache_dir: A local directory for the plans; None keeps them in memory.

    Raises:
      UserError: See `check_split`.
    """

    def __init__(
        self,
        split: StoreSplit,
        vocabulary: Tokenizer,
        *,
        seq_len: int,
        max_predictions: int,
        pairs: PairOptions,
        masking: MaskOptions,
        seed: int,
        phase: int,
        cache_dir: str | pathlib.Path | None,
    ):
        self.split, self.vocabulary = split, vocabulary
        self.seq_len, self.max_predictions = seq_len, max_predictions
        self.pairs, self.masking = pairs, masking
        ids, special = np.arange(vocabulary.vocab_size), vocabulary.special_ids
        self._allowed_ids = np.setdiff1d(ids, special)
        # [UNK] is predicted, as in google-research/bert. The slots [unusedN] may be tokens of a corpus of ids.
        other = [i for i in special.tolist() if i != vocabulary.unk_id and not is_unused(vocabulary.pieces[i])]
        self._predictable = np.isin(ids, other, invert=True)
        check_split(split, pairs, seq_len)
        self.cache_dir = cache_dir
        self._walk_seed, self.phase_seed = seed, hash_int(seed, Stream.PHASE, phase)

    @functools.cached_property
    def _plans(self) -> list[PairPlan]:
        """The plans. They are made at their first use, so a run does not wait for the plans of later phases."""
        return load_plans(self.split, self.pairs, self.seq_len, self._walk_seed, self.cache_dir)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.plan_lengths)

    @property
    def cycle_length(self) -> int:
        """The number of examples in all plans."""
        return int(self._ends[-1])

    @property
    def plan_lengths(self) -> list[int]:
        """The number of examples in each plan."""
        return [len(plan.chunks) for plan in self._plans]

    @property
    def identity(self) -> list[object]:
        """JSON values that determine the examples of the first cycle, except for their masks."""
        text = [self.split.sha, self.vocabulary.separators, self.seq_len, self._walk_seed, self.phase_seed]
        rules = [WALK_VERSION, dataclasses.asdict(self.pairs), self.masking.static]
        return [*text, *rules, self.plan_lengths]

    def batch(
        self, indices: np.ndarray, rates: np.ndarray | None = None, mask_cycle: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the examples `indices` (int64 [B], not negative) in the format of `batch.py`.

        Args:
          rates: float64 [B], replaces the mask rate of the options. No value may be above the rate of the options.
          mask_cycle: int64 [B], the cycle (from 0) from which each example takes its masks. If given, all `indices` are
            of the first cycle, and no row exceeds its budget (see `masking.mask_batch`). Static masks are the same in
            all cycles. None takes the masks of the cycle of each index.
        """
        slots = self._locate(indices)
        mask_keys = slots.key
        if mask_cycle is not None and not self.masking.static:
            mask_keys = slots.key + mask_cycle * self.cycle_length
        ranges = self._ranges(slots)
        arrays, maskable = rows.lay_out(self.split, ranges, self.seq_len, self.vocabulary)
        maskable &= self._predictable[arrays['input_ids']]  # the text may contain names of special tokens
        is_causal = None
        if self.masking.causal_share:
            is_causal = uniform(self.phase_seed, Stream.CAUSAL, mask_keys) < self.masking.causal_share
        masks = mask_batch(
            arrays['input_ids'],
            maskable,
            options=self.masking,
            max_predictions=self.max_predictions,
            tokenizer=self.vocabulary,
            allowed_ids=self._allowed_ids,
            seed=self.phase_seed,
            n=mask_keys,
            within_budget=mask_cycle is not None,
            rates=rates,
            causal=is_causal,
        )
        flags = {} if is_causal is None else {'causal': arrays['attention_mask'] * is_causal[:, None]}
        return {
            **arrays,
            **masks,
            **flags,
            'nsp_labels': ranges.labels.astype(np.int32),
            'nsp_weights': ranges.paired.astype(np.float32),
        }

    @functools.cached_property
    def report(self) -> dict[str, object]:
        """Statistics of the examples as JSON values, for the description of a run.

        `real_positions`, the share of positions that are not padding, comes from a sample. So does `kept_tokens`, the
        share of the tokens of pairs that truncation keeps (None without pairs). The share of chunks with one sentence
        (`one_sentence`; None without pairs) and the share of IsNext (`is_next`; None if the mode is not 'nsp') cover
        all plans.
        """
        total, paired = self.cycle_length, self.pairs.paired
        is_next = kept = None
        if self.pairs.mode == 'nsp':
            is_next = sum(int(np.count_nonzero(plan.chunks['b'])) for plan in self._plans) / total
        sample = np.linspace(0, total - 1, min(total, _SAMPLE)).astype(np.int64)
        slots = self._locate(sample)
        ranges = self._ranges(slots)
        if paired:
            drawn = self._draw(slots)
            kept = float(ranges.length.sum() / (drawn.a_length.sum() + drawn.b_length.sum()))
        return {
            'mode': self.pairs.mode,
            'plans': self.pairs.distinct_plans,
            'examples_per_plan': total / len(self._plans),
            'one_sentence': sum(plan.one_sentence for plan in self._plans) / total if paired else None,
            'is_next': is_next,
            'kept_tokens': kept,
            'real_positions': float(ranges.row_lengths().mean() / self.seq_len),
        }

    def lengths(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of real (not padding) and of maskable positions of each example, int64 [B] each.

        The second number includes special tokens of the text, so it is an upper bound.
        """
        ranges = self._ranges(self._locate(indices))
        maskable = np.bincount(ranges.row, ranges.length, len(ranges.labels))
        return ranges.row_lengths(), maskable.astype(np.int64)

    def _locate(self, indices: np.ndarray) -> _Slots:
        indices = np.asarray(indices, np.int64)
        cycle, plan, slot, begin = locate_in_plans(indices, self._ends, self.phase_seed, Stream.ORDER)
        chunks = np.empty(len(indices), CHUNK)
        for number in np.unique(plan).tolist():
            selected = plan == number
            chunks[selected] = self._plans[number].chunks[slot[selected]]
        document = rows.locate_documents(self.split, chunks, self.pairs)
        return _Slots(cycle, plan, slot, chunks, document, begin + slot if self.masking.static else indices)

    def _draw(self, slots: _Slots) -> rows.Segments:
        target = draw_target_lengths(slots.document, self.pairs, self.seq_len, self._walk_seed, slots.plan)
        return rows.draw_pairs(
            self.split, slots.chunks, target, slots.document, self.pairs.mode, self.phase_seed, slots.key
        )

    def _ranges(self, slots: _Slots) -> rows.TokenRanges:
        if not self.pairs.paired:
            return rows.sentence_ranges(self.split, slots.chunks, slots.document)
        separators = self.vocabulary.separators
        drawn = self._draw(slots)
        return rows.pair_ranges(rows.truncate(drawn, self.seq_len, self.phase_seed, slots.key, separators), separators)
