"""The examples of a pre-training: of its corpus, of what that holds out, and of config.heldout_texts."""

import math
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from bertjax.corpus.store import StoreSplit
from bertjax.data.mixture import MixedExamples
from bertjax.data.packed import PackedExamples
from bertjax.data.pretraining import PretrainingExamples
from bertjax.pretrain.heldout_texts import split_name
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import WeightedStore
from bertjax.text.tokenizer import Tokenizer

# The seed of the held-out examples and their masks: the same in every run, whatever config.seed is.
HELDOUT_SEED = 20181011

Examples = PretrainingExamples | PackedExamples | MixedExamples


class StoreExamples:
    """The examples of a pre-training, by shape, split and phase; made once each.

    Args:
      settings: with the rules for pairs and masks.
      stores: one, or those of a mixture.
      tokenizer: theirs.
      cache_dir: where pairing plans are kept.
      texts: further ones to evaluate on, by name.
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
        self._made: dict[tuple, Examples] = {}

    @property
    def vocab_size(self) -> int:
        """V, of the pieces that they are made of."""
        return self._tokenizer.vocab_size

    @property
    def has_heldout(self) -> bool:
        """Whether every store has documents to evaluate on."""
        return all(weighted.store.split('heldout').num_documents for weighted in self._stores)

    def get(self, shape: tuple[int, int], split: str, phase: int) -> Examples:
        """The examples of a phase; with config.packing those of training in packed rows.

        Held-out examples are masked at config.masking.eval_rate, and have as many predictions as that needs.

        Args:
          shape: S and P.
          split: 'train' or 'heldout'.
          phase: its number.

        Raises:
          UserError: lengths or rules that cannot be met.
        """
        key = (shape, split, phase)
        if key not in self._made:
            training = split == 'train'
            parts = [self._of(weighted.store.split(split), shape, phase, training) for weighted in self._stores]
            if self._settings.packing and training:
                parts = [PackedExamples(examples) for examples in parts]
            weights = [weighted.weight for weighted in self._stores]
            seed = self._settings.run_seeds.data if training else HELDOUT_SEED
            self._made[key] = parts[0] if len(parts) == 1 else MixedExamples(parts, weights, seed=seed, phase=phase)
        return self._made[key]

    def of_text(self, name: str, shape: tuple[int, int], phase: int) -> PretrainingExamples:
        """The examples of one of `texts`; shape and phase as in `get`."""
        key = (shape, split_name(name), phase)
        if key not in self._made:
            self._made[key] = self._of(self.texts[name], shape, phase, training=False)
        return self._made[key]

    def _of(self, split: StoreSplit, shape: tuple[int, int], phase: int, training: bool) -> PretrainingExamples:
        (seq_len, max_predictions), masking = shape, self._settings.masking
        if not training:
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
