"""The examples of a pre-training: of every shape that its phases have, to train on and held out."""

import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from bertjax.data.mixture import MixedExamples
from bertjax.data.pretraining import PretrainingExamples
from bertjax.runs import _settings as settings
from bertjax.runs._text import WeightedStore
from bertjax.text.tokenizer import Tokenizer

# The seed of the held-out examples and their masks: the same in every run, whatever config.seed is.
HELDOUT_SEED = 20181011

ExamplesOf = Callable[[int, int, str, int], PretrainingExamples | MixedExamples]


def has_heldout(stores: list[WeightedStore]) -> bool:
    """Whether every store has documents to evaluate on."""
    return all(weighted.store.split('heldout').num_documents for weighted in stores)


def first_shape(config: ConfigDict) -> tuple[int, int]:
    """S and P of the first phase."""
    first = config.phases[0] if config.phases else config
    return first.seq_len or config.seq_len, first.max_predictions or config.max_predictions


def examples_factory(
    config: ConfigDict, stores: list[WeightedStore], tokenizer: Tokenizer, folder: pathlib.Path
) -> ExamplesOf:
    """A function: (S, P, split name, phase number) -> the examples of that shape, made once."""
    made: dict[tuple, PretrainingExamples | MixedExamples] = {}

    def examples(seq_len: int, max_predictions: int, split: str, phase: int) -> PretrainingExamples | MixedExamples:
        key = (seq_len, max_predictions, split, phase)
        seed = settings.seed_of(config, 'data') if split == 'train' else HELDOUT_SEED
        if key not in made:
            parts = [
                PretrainingExamples(
                    weighted.store.split(split),
                    tokenizer,
                    seq_len=seq_len,
                    max_predictions=max_predictions,
                    pairs=settings.pair_options(config),
                    masking=settings.mask_options(config),
                    seed=seed,
                    phase=phase,
                    cache_dir=folder / 'store' / 'plans',
                )
                for weighted in stores
            ]
            weights = [weighted.weight for weighted in stores]
            made[key] = parts[0] if len(parts) == 1 else MixedExamples(parts, weights, seed=seed, phase=phase)
        return made[key]

    return examples
