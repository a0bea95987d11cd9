"""Evaluates a pre-training run on config.heldout_pairs: computes the accuracy on minimal pairs."""

import contextlib
import dataclasses
import filecmp
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.data.features import masked_copies
from bertjax.data.length_buckets import choose_lengths
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.remote.paths import user_path
from bertjax.tasks.minimal_pairs import MinimalPair, accuracies, deduplicate, encode_pairs, read_pairs
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.evaluate import OnCompile
from bertjax.training.predict import SCORE_INPUTS, Predictor, make_token_scores
from bertjax.workdir.lock import has_checkpoints

SPLIT = 'heldout_pairs'  # the split name of the pairs in metric rows
_KEY = 'config.heldout_pairs'
_MAX_LENGTHS = 4  # the maximum number of padded lengths; each length is compiled once


def read_heldout_pairs(settings: PretrainingSettings, folder: pathlib.Path) -> list[MinimalPair]:
    """Returns the pairs of config.heldout_pairs, or config.eval_examples evenly spaced pairs if there are more.

    Raises:
      UserError: The run in `folder` has evaluated another file, or see `read_pairs`.
    """
    key = 'heldout_pairs'
    used = read_json_or_none(folder / 'config.json', lambda facts: facts[key]) if has_checkpoints(folder) else None
    if used and settings.heldout_pairs and _differ(used, settings.heldout_pairs):
        fix = 'restore it, and use --config=configs/minimal_pairs.py for the other file'
        raise UserError(_KEY, repr(settings.heldout_pairs), f'{used!r}, as in {folder}', fix)
    pairs = read_pairs(settings.heldout_pairs, _KEY) if settings.heldout_pairs else []
    count = min(len(pairs), settings.eval_examples)
    return [pairs[number * len(pairs) // count] for number in range(count)]


def _differ(first: str, second: str) -> bool:
    """Whether two paths name existing files with different content."""
    paths = [user_path(path, _KEY) for path in (first, second)]
    return all(path.is_file() for path in paths) and not filecmp.cmp(*paths, shallow=False)


class PairsEvaluator:
    """An evaluator of the training loop (`EvaluatorProtocol`) that computes the accuracy on minimal pairs.

    There must be at least one pair. A batch has `batch_size` copies of sentences, each with one masked token.

    Raises:
      UserError: See `encode_pairs`.
    """

    split = SPLIT

    def __init__(
        self, pairs: Sequence[MinimalPair], tokenizer: Tokenizer, module: nn.Module, *, batch_size: int, mesh: Mesh
    ):
        longest = module.config.max_positions
        # The kernel in config.model.attention may not support the lengths of the sentences.
        module = module.clone(config=dataclasses.replace(module.config, attention='auto'))
        distinct, self._index = deduplicate(encode_pairs(pairs, tokenizer, longest))
        self._pairs, self._count, self._features = pairs, len(distinct), masked_copies(distinct, tokenizer.mask_id)
        self._predictor = Predictor(
            make_token_scores(module),
            mesh,
            inputs=SCORE_INPUTS,
            per_token=(),
            batch_size=batch_size,
            shapes=choose_lengths(self._features.lengths, count=_MAX_LENGTHS, max_length=longest),
            pad_id=tokenizer.pad_id,
        )

    def run(self, params: Any, on_compile: OnCompile = contextlib.nullcontext) -> tuple[dict[str, float | None], None]:
        """Returns `accuracy`, the mean over the sets of pairs, and its `standard_error`.

        The second value is None, because pairs never select the best checkpoint.
        """
        rows = self._predictor.outputs(params, self._features, on_compile)['log_probabilities']
        scores = np.bincount(self._features.record, np.concatenate(rows).astype(np.float64), self._count)
        figures = accuracies(self._pairs, scores[self._index].reshape(-1, 2))
        return {name: figures[name] for name in ('accuracy', 'standard_error')}, None
