"""The examples of a pre-training run: training and held-out examples, and the examples of config.heldout_texts."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from bertjax.corpus.store import StoreSplit
from bertjax.data.mixture import MixedExamples
from bertjax.data.packed_examples import PackedExamples
from bertjax.data.pretraining import PretrainingExamples
from bertjax.pretrain.heldout_texts import split_name
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import WeightedStore
from bertjax.text.tokenizer import Tokenizer

# The seed of the held-out examples and their masks. It is independent of config.seed, so that runs are comparable.
HELDOUT_SEED = 20181011

Examples = PretrainingExamples | PackedExamples | MixedExamples


class StoreExamples:
    """The examples of a pre-training run. Those of each shape, split and phase are built once.

    Args:
      stores: The token stores: one, or one for each part of a mixture.
      texts: {name: split}, the texts of config.heldout_texts.
    """

    def __init__(
        self,
        settings: PretrainingSettings,
        stores: list[WeightedStore],
        tokenizer: Tokenizer,
        cache_dir: pathlib.Path,
        texts: Mapping[str, StoreSplit] = MappingProxyType({}),
    ):
        self._settings, self._stores, self._tokenizer, self._cache_dir = settings, stores, tokenizer, cache_dir
        self.texts = texts
        self._cache: dict[tuple, Examples] = {}

    @property
    def vocab_size(self) -> int:
        """The vocabulary size, V."""
        return self._tokenizer.vocab_size

    @property
    def has_heldout(self) -> bool:
        """Whether every store has held-out documents."""
        return all(weighted.store.split('heldout').num_documents for weighted in self._stores)

    def get(self, shape: tuple[int, int], split: str, phase: int) -> Examples:
        """Returns the examples of a phase. With config.packing, training examples are packed into rows.

        Training examples have the highest mask rate of the phase, which `ScheduledMasks` can lower. Held-out examples
        have the mask rate config.masking.eval_rate, which also limits their predictions.

        Args:
          shape: (S, P), the sequence length and the maximum number of predictions of training examples.
          split: 'train' or 'heldout'.

        Raises:
          UserError: See `PretrainingExamples`.
        """
        key = (shape, split, phase)
        if key not in self._cache:
            training = split == 'train'
            parts = [self._build(weighted.store.split(split), shape, phase, training) for weighted in self._stores]
            if self._settings.packing and training:
                parts = [PackedExamples(examples) for examples in parts]
            weights = [weighted.weight for weighted in self._stores]
            seed = self._settings.run_seeds.data if training else HELDOUT_SEED
            self._cache[key] = parts[0] if len(parts) == 1 else MixedExamples(parts, weights, seed=seed, phase=phase)
        return self._cache[key]

    def get_text(self, name: str, shape: tuple[int, int], phase: int) -> PretrainingExamples:
        """Returns the examples of the text `name` in `texts`. For `shape` and `phase`, see `get`."""
        key = (shape, split_name(name), phase)
        if key not in self._cache:
            self._cache[key] = self._build(self.texts[name], shape, phase, training=False)
        return self._cache[key]

    def _build(self, split: StoreSplit, shape: tuple[int, int], phase: int, training: bool) -> PretrainingExamples:
        (seq_len, max_predictions), masking = shape, self._settings.masking
        if training:
            phase_values = self._settings.phase_specs[phase].values
            rate = max(phase_values['mask_rate'], phase_values['final_mask_rate'])
            masking = dataclasses.replace(masking, rate=rate)
        else:
            masking = masking.for_evaluation()
            max_predictions = math.ceil(masking.rate * seq_len)
        return PretrainingExamples(
            split,
            self._tokenizer,
            seq_len=seq_len,
            max_predictions=max_predictions,
            pairs=self._settings.pair_options,
            masking=masking,
            seed=self._settings.run_seeds.data if training else HELDOUT_SEED,
            phase=phase,
            cache_dir=self._cache_dir,
        )
