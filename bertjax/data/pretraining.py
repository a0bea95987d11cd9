"""Pre-training examples by number: each row is a function of its number alone (law 1 of docs/architecture.md)."""

import dataclasses
import functools
import pathlib
from typing import Protocol

import numpy as np

from bertjax.data import rows
from bertjax.data.batch import make_in_chunks
from bertjax.data.hashing import Stream, hash_int
from bertjax.data.masking import MaskOptions, mask_batch, replacement_ids
from bertjax.data.pairs import CHUNK, PairOptions, PairPlan, TokenSplit, check_split, draw_target_lengths
from bertjax.data.plans import WALK_VERSION, load_plans, locate_in_plans
from bertjax.errors import UserError

# The number of examples, evenly spaced over a cycle, in the sampled figures of `report`.
_SAMPLE = 8192


class Vocabulary(Protocol):
    """The part of a tokenizer that examples need; see `bertjax.text.tokenizer.Tokenizer`."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    separators: int
    special_ids: np.ndarray
    continues_word: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Slots:
    """The slots of examples; arrays [B]. `key` is the number by which the draws of an example are keyed."""

    cycle: np.ndarray
    plan: np.ndarray
    slot: np.ndarray
    chunks: np.ndarray
    document: np.ndarray
    key: np.ndarray


class PretrainingExamples:
    """The endless examples of one phase, by number: 0, 1, 2, ...

    The numbers go through the plans one after the other (a cycle), then through all plans again. The slots of a plan
    come in an order permuted by (seed, phase, cycle, plan). Each slot is used once in a cycle.

    Args:
      split: One side of a token store.
      vocabulary: A tokenizer.
      seq_len: S.
      max_predictions: P.
      pairs: The options of pairing.
      masking: The options of masking.
      seed, phase: An example depends on these, its number, the text and the options, and on nothing else.
      cache_dir: A local directory for the plans; None keeps them in memory.

    Raises:
      UserError: A length or an option that cannot be satisfied; it names the config key.
    """

    def __init__(
        self,
        split: TokenSplit,
        vocabulary: Vocabulary,
        *,
        seq_len: int,
        max_predictions: int,
        pairs: PairOptions,
        masking: MaskOptions,
        seed: int,
        phase: int,
        cache_dir: str | pathlib.Path | None,
    ):
        if not 1 <= max_predictions <= seq_len:
            expected, fix = f'1 to seq_len={seq_len}', 'use about 0.15 x seq_len'
            raise UserError('config.max_predictions', str(max_predictions), expected, fix)
        self.split, self.vocabulary = split, vocabulary
        self.seq_len, self.max_predictions = seq_len, max_predictions
        self.pairs, self.masking = pairs, masking
        self._allowed_ids = replacement_ids(vocabulary.vocab_size, vocabulary.special_ids)
        check_split(split, pairs, seq_len)
        self.cache_dir = cache_dir
        self._walk_seed, self.phase_seed = seed, hash_int(seed, Stream.PHASE, phase)

    @functools.cached_property
    def _plans(self) -> list[PairPlan]:
        """The plans, walked at the first use, so that the later phases of a long run cost nothing at its start."""
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
        """Everything that the examples of a cycle depend on, except for the masks, as JSON values."""
        text = [self.split.sha, self.vocabulary.separators, self.seq_len, self._walk_seed, self.phase_seed]
        rules = [WALK_VERSION, dataclasses.asdict(self.pairs), self.masking.static]
        return [*text, *rules, self.plan_lengths]

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the examples `indices` (int64 [B], not negative) as the arrays that `batch.py` describes."""
        return make_in_chunks(self._batch, np.asarray(indices, np.int64), self.seq_len)

    def _batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        slots = self._find(indices)
        return self._make(slots, slots.key)

    def batch_with_new_masks(self, indices: np.ndarray, cycle: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the examples `indices` with the masks of cycles `cycle` (int64 [B], from 0).

        No example has more positions to predict than its budget; see `masking.mask_batch`.
        """
        slots = self._find(indices)
        anew = slots.key if self.masking.static else slots.key + cycle * self.cycle_length
        return self._make(slots, anew, within_budget=True)

    def _make(self, slots: _Slots, n: np.ndarray, within_budget: bool = False) -> dict[str, np.ndarray]:
        """Makes the rows of `slots`; their masks are keyed by n."""
        ids = (self.vocabulary.cls_id, self.vocabulary.sep_id, self.vocabulary.pad_id)
        if self.pairs.paired:
            separators = self.vocabulary.separators
            segments = rows.truncate(self._draw(slots), self.seq_len, self.phase_seed, slots.key, separators)
            laid_out = rows.lay_out_pairs(self.split, segments, self.seq_len, *ids, separators)
            labels, paired = segments.labels, segments.paired
        else:
            laid_out = rows.lay_out_sentences(self.split, slots.chunks, slots.document, self.seq_len, *ids)
            labels = paired = np.zeros(len(slots.key))
        masks = mask_batch(
            laid_out.input_ids,
            laid_out.maskable,
            options=self.masking,
            max_predictions=self.max_predictions,
            mask_id=self.vocabulary.mask_id,
            allowed_ids=self._allowed_ids,
            continues_word=self.vocabulary.continues_word,
            seed=self.phase_seed,
            n=n,
            within_budget=within_budget,
        )
        return {
            'input_ids': laid_out.input_ids,
            'segment_ids': laid_out.segment_ids,
            'attention_mask': laid_out.real.astype(np.int32),
            **masks,
            'nsp_labels': labels.astype(np.int32),
            'nsp_weights': paired.astype(np.float32),
        }

    @functools.cached_property
    def report(self) -> dict[str, object]:
        """Statistics of the examples as JSON values: counts and shares of all plans, lengths of a sample of a cycle.

        `is_next` is the share of IsNext among all examples, `is_next_of_two` among those from chunks of two sentences
        or more. `one_sentence` is the share of chunks of one sentence (NotNext in 'nsp', no pair in 'sop'). These are
        null without pairs or without such chunks. `real_positions` is the share of positions that are not padding.
        `mean_a` and `mean_b` are tokens after truncation (`mean_b` over rows that have a B), and `truncated` is the
        share of rows that lost tokens.
        """
        total, paired = self.cycle_length, self.pairs.paired
        single = sum(plan.one_sentence for plan in self._plans)
        report = {
            'mode': self.pairs.mode,
            'plans': len(self._plans),
            'examples_per_cycle': total,
            'examples_per_plan': total / len(self._plans),
            'one_sentence': single / total if paired else None,
            'is_next': None,
            'is_next_of_two': None,
            'next_probability': None,
        }
        if self.pairs.mode == 'nsp':
            following = sum(int(np.count_nonzero(plan.chunks['b'])) for plan in self._plans)
            report['is_next'] = following / total
            report['is_next_of_two'] = following / (total - single) if total > single else None
            report['next_probability'] = self._plans[0].next_probability
        slots = self._find(np.linspace(0, total - 1, min(total, _SAMPLE)).astype(np.int64))
        a, b, real, before = self._lengths(slots)
        report['sampled'] = len(real)
        report['real_positions'] = float(real.mean() / self.seq_len)
        report['mean_a'] = float(a.mean())
        report['mean_b'] = float(b[b > 0].mean()) if b.any() else None
        report['truncated'] = float((before > a + b).mean())
        return report

    def lengths(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions of each example that are not padding, and those that may be masked, int64 [B] each."""
        a, b, real, _ = self._lengths(self._find(indices))
        return real, a + b

    def _lengths(self, slots: _Slots) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns tokens of A, tokens of B, positions without padding, and tokens before truncation, int64 [B] each."""
        if not self.pairs.paired:
            a = slots.chunks['a'].astype(np.int64)
            return a, np.zeros_like(a), a + slots.chunks['b'] + 1, a
        drawn, separators = self._draw(slots), self.vocabulary.separators
        segments = rows.truncate(drawn, self.seq_len, self.phase_seed, slots.key, separators)
        a, b = segments.a_length, segments.b_length
        return a, b, a + b + np.where(b > 0, 2 + separators, 2), drawn.a_length + drawn.b_length

    def _find(self, indices: np.ndarray) -> _Slots:
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
