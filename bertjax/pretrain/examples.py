"""The examples of a pre-training run: training and held-out examples, and the examples of config.heldout_texts."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from bertjax.checkpoint.position import Position
from bertjax.corpus.sources import parse_mixture
from bertjax.corpus.store import StoreSplit, TokenStore
from bertjax.data.hashing import Stream, hash_int
from bertjax.data.mixture import MixedExamples
from bertjax.data.packing import PackedExamples
from bertjax.data.pretraining import PretrainingExamples
from bertjax.data.scheduled_masks import ScheduledMasks
from bertjax.errors import UserError
from bertjax.pretrain.heldout import split_name
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import open_stores
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

# The seed of the held-out examples and their masks. It is independent of config.seed, so that runs are comparable.
HELDOUT_SEED = 20181011

PhaseExamples = PretrainingExamples | PackedExamples | MixedExamples


class StoreExamples:
    """The examples of a pre-training run, built once for each shape, split and phase.

    Args:
      stores: The token stores: one, or one for each part of a mixture.
      texts: {name: split}, the texts of config.heldout_texts.
    """

    def __init__(
        self,
        settings: PretrainingSettings,
        stores: list[TokenStore],
        tokenizer: Tokenizer,
        cache_dir: pathlib.Path,
        texts: Mapping[str, StoreSplit] = MappingProxyType({}),
    ):
        self.settings, self.stores, self.tokenizer, self._cache_dir = settings, stores, tokenizer, cache_dir
        self.texts = texts
        self._cache: dict[tuple, PhaseExamples] = {}
        # {split name: the split of each token store}. All phases share the memory maps.
        self._splits = {split: [store.split(split) for store in stores] for split in ('train', 'heldout')}
        self._splits |= {split_name(name): [split] for name, split in texts.items()}

    @classmethod
    def open(cls, settings: PretrainingSettings, folder: pathlib.Path) -> 'StoreExamples':
        """Opens the examples of the run in a workdir. Raises a UserError if the tokenizer or a store cannot be read."""
        tokenizer = load_tokenizer(str(folder / 'tokenizer'))
        stores = open_stores(settings, folder, tokenizer, verify=False)
        return cls(settings, stores, tokenizer, folder / 'store' / 'plans')

    @property
    def has_heldout(self) -> bool:
        """Whether every store has held-out documents."""
        return all(split.num_documents for split in self._splits['heldout'])

    @property
    def total_steps(self) -> int:
        """The length of the run in steps. For errors, see `PretrainingSettings.total_steps`."""
        first = self.get(self.settings.first_shape, 'train')
        return self.settings.total_steps(first.cycle_length // self.settings.pair_options.plans)

    def get(self, shape: tuple[int, int], split: str, phase: int = 0) -> PhaseExamples:
        """Returns the examples of a split. With config.packing, training examples are packed into rows.

        Training examples have the highest mask rate of the phase, which `get_training` can lower. Evaluation examples
        have the mask rate config.masking.eval_rate, which also determines their maximum number of predictions. The
        evaluation examples and their masks are equal in all phases of one row length, so the losses are comparable.

        Args:
          shape: (S, P), the sequence length and the maximum number of predictions of training examples.
          split: 'train', 'heldout', or the split name of a text in `texts`.
          phase: The index of the phase, for training examples.

        For errors, see `PretrainingExamples`.
        """
        key = (shape, split, phase)
        if key not in self._cache:
            training = split == 'train'
            parts = [self._build(corpus, shape, split, phase) for corpus in range(len(self._splits[split]))]
            if self.settings.packing and training:
                parts = [PackedExamples(examples) for examples in parts]
            seed = self.settings.run_seeds.data if training else HELDOUT_SEED
            weights = [store.weight for store in self.stores]
            self._cache[key] = parts[0] if len(parts) == 1 else MixedExamples(parts, weights, seed=seed, phase=phase)
        return self._cache[key]

    def get_training(self, phase: PretrainingPhase, position: Position) -> PhaseExamples | ScheduledMasks:
        """Returns the training examples of a phase, with the mask rates of a run that continues at `position`."""
        examples = self.get((phase.seq_len, phase.max_predictions), 'train', phase.number)
        if phase.mask_rate == phase.final_mask_rate:
            return examples
        offset = phase.examples_until(position.step) - position.enter(phase.number).next
        count = phase.examples_until(phase.last_step)
        return ScheduledMasks(examples, phase.mask_rate, phase.final_mask_rate, count, offset)

    def _build(self, corpus: int, shape: tuple[int, int], split: str, phase: int) -> PretrainingExamples:
        (seq_len, max_predictions), masking = shape, self.settings.masking
        if split == 'train':
            values, seed = self.settings.unresolved_phases[phase], self.settings.run_seeds.data
            # With a single seed, example n of every corpus in a mixture would have the same masks.
            seed = hash_int(seed, Stream.CORPUS, corpus) if corpus else seed
            masking = dataclasses.replace(masking, rate=max(values.mask_rate, values.final_mask_rate))
        else:
            masking, seed = masking.for_evaluation(), HELDOUT_SEED
            max_predictions = math.ceil(masking.rate * seq_len)
        try:
            return PretrainingExamples(
                self._splits[split][corpus],
                self.tokenizer,
                seq_len=seq_len,
                max_predictions=max_predictions,
                pairs=self.settings.pair_options,
                masking=masking,
                seed=seed,
                phase=phase,
                cache_dir=self._cache_dir,
            )
        except UserError as error:
            if len(self._splits[split]) == 1 or error.where != 'config.corpus':
                raise
            name = parse_mixture(self.settings.corpus)[corpus][0]
            raise UserError(error.where, f'in {name}: {error.found}', error.expected, error.fix) from None
