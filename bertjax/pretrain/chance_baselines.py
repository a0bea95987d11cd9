"""Chance baselines of a pre-training run: the held-out loss and accuracy of a model that uses no context."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.config.plain import from_plain
from bertjax.config.ranges import in_steps
from bertjax.corpus.store import StoreSplit, TokenStore
from bertjax.data.mixture import MixedExamples
from bertjax.data.pretraining import PretrainingExamples
from bertjax.errors import UserError
from bertjax.metrics.rows import pair_name
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.settings import pretraining_settings
from bertjax.workdir.files import read_recorded_config

_BATCH_SIZE = 1024  # the number of examples or documents that are read at once


@dataclasses.dataclass(frozen=True)
class ChanceBaselines:
    """The chance baselines of a run on its held-out text.

    Attributes:
      pair: The prefix of the sentence-pair metrics in a row of metrics, 'nsp' or 'sop'.
      unigram: See `unigram_entropy`; None if it cannot be computed.
      majority: {phase number: share} (see `majority_share`); empty without pairs.
    """

    pair: str = 'nsp'
    unigram: float | None = None
    majority: Mapping[int, float] = dataclasses.field(default_factory=dict)


def read_chance_baselines(folder: pathlib.Path) -> ChanceBaselines:
    """Computes the baselines of a finished or unfinished run in a workdir.

    Without a config.json, all values are defaults. If the tokenizer or a token store cannot be read, only `pair` is
    set.

    Raises:
      UserError: config.json is damaged, or it is the config of a task.
    """
    path = folder / 'config.json'
    if not path.exists():
        return ChanceBaselines()
    config = read_recorded_config(path, '')
    settings = pretraining_settings(from_plain(config))
    try:
        examples = StoreExamples.open(settings, folder)
    except UserError:  # the rows of metrics can be shown without these baselines
        return ChanceBaselines(pair_name(settings.pair_options.mode))
    return compute_chance_baselines(examples, in_steps(config['steps'], 'steps'))


def compute_chance_baselines(examples: StoreExamples, total: int) -> ChanceBaselines:
    """Computes the baselines of a run with `total` steps."""
    settings, majority = examples.settings, {}
    pair = pair_name(settings.pair_options.mode)
    if not examples.has_heldout:
        return ChanceBaselines(pair)
    if settings.pair_options.paired:
        for phase in settings.resolve_phases(total):
            heldout = examples.get((phase.seq_len, phase.max_predictions), 'heldout')
            share = majority_share(heldout, settings.eval_examples)
            majority |= {phase.number: share} if share is not None else {}
    return ChanceBaselines(pair, unigram_entropy(examples.stores, examples.tokenizer.vocab_size), majority)


def unigram_entropy(stores: Sequence[TokenStore], vocab_size: int) -> float | None:
    """Returns the unigram entropy of the held-out text in nats, or None if no text is held out.

    This is the loss of a model that gives each piece a probability equal to its frequency in the held-out text. No
    model that ignores the context has a lower loss.
    """
    shares = np.zeros(vocab_size)
    for store in stores:
        counts = _piece_counts(store.split('heldout'), vocab_size)
        shares += store.weight * counts / max(counts.sum(), 1)
    shares = shares[shares > 0] / max(shares.sum(), 1e-12)
    return float(-(shares * np.log(shares)).sum()) if len(shares) else None


def _piece_counts(split: StoreSplit, vocab_size: int) -> np.ndarray:
    """Returns int64 [V], the number of occurrences of each piece."""
    counts = np.zeros(vocab_size, np.int64)
    offsets = split.sentence_offsets[split.document_offsets]  # the first token of each document, then the end
    for first in range(0, split.num_documents, _BATCH_SIZE):
        bounds = itertools.pairwise(offsets[first : first + _BATCH_SIZE + 1])
        texts = [split.tokens(int(start), int(end - start)) for start, end in bounds]
        counts += np.bincount(np.concatenate(texts), minlength=vocab_size)
    return counts


def majority_share(examples: PretrainingExamples | MixedExamples, count: int) -> float | None:
    """Returns the share of the more frequent pair label in the first `count` examples, or None without pairs."""
    ones = total = 0.0
    count = min(count, examples.cycle_length)
    for first in range(0, count, _BATCH_SIZE):
        rows = examples.batch(np.arange(first, min(first + _BATCH_SIZE, count)))
        ones += float((rows['nsp_labels'] * rows['nsp_weights']).sum())
        total += float(rows['nsp_weights'].sum())
    return max(ones, total - ones) / total if total else None
