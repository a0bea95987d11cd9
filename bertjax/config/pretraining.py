"""The keys of a pre-training."""

import dataclasses
from typing import Any

from bertjax.config.distillation import DistillationKeys
from bertjax.config.ranges import COUNT, MANY, Range, duration, either, one_of, only, whole
from bertjax.config.run import EPOCHS, RATE, ROWS, TEXT, WARMUP, Optimizer, RunKeys
from bertjax.config.schema import STATE, TRAINING, VERB, group, key, override, subset
from bertjax.corpus.sources import CorpusOptions
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import SCHEDULES

_LENGTH = whole(8, MANY)
_FAMILIES = ('wordpiece', 'sentencepiece', 'bpe', 'symbols')


@dataclasses.dataclass(frozen=True)
class Vocab:
    """config.vocab."""

    family: str = key('wordpiece', one_of(_FAMILIES), '`bpe` is byte-level; in `symbols` each symbol is a piece')
    size: int = key(30522, whole(8, 10_000_000), 'pieces of a trained vocabulary')
    lowercase: bool = key(True, about='lower-case the text')
    unused: int = key(0, whole(0, MANY), '`[unusedN]` slots reserved for your own words')
    model_type: str = key('unigram', one_of(('unigram', 'bpe')), 'the model of `sentencepiece`')
    sample_sentences: int = key(1_000_000, whole(1, COUNT), 'most sentences that `sentencepiece` is trained on')
    add: str = key('', TEXT, 'a file with one word per line; the words become pieces of an existing vocabulary')
    candidates: int = key(
        0, whole(0, MANY), '`run=vocab`: list so many words for `vocab.add` instead of training a vocabulary'
    )


def _inherited(allowed: Range, unset: Any) -> Any:
    """Declares a key of a phase that inherits the value of the run if it is `unset`."""
    return key(unset, either(allowed, only(unset, "the run's own")), f"{unset!r}: the run's own", inherited=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseKeys:
    """An entry of config.phases."""

    steps: int | str = key(
        '100%', duration('%'), 'steps, or a percentage of `steps`; the phases together make the whole run'
    )
    reset_optimizer: bool = key(False, about='reset the moments of the optimiser at the start')
    seq_len: int = _inherited(_LENGTH, 0)
    max_predictions: int = _inherited(ROWS, 0)
    batch_size: int = _inherited(ROWS, 0)
    grad_accum_steps: int = _inherited(ROWS, 0)
    learning_rate: float = _inherited(RATE, 0.0)
    warmup_fraction: float = _inherited(WARMUP, -1.0)
    schedule: str = _inherited(one_of(SCHEDULES), '')


# {key that a phase can inherit: the value that means inheriting}.
INHERITED = {field.name: field.default for field in dataclasses.fields(PhaseKeys) if 'inherited' in field.metadata}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingKeys(RunKeys):
    """The recipe of BERT (arXiv 1810.04805, google-research/bert), in one phase."""

    run: str = override(RunKeys, 'run', 'pretrain')

    corpus: str = key(
        'pydoc:', TEXT, 'text: files, globs, `A=0.7,B=0.3` by weight or `=auto` by size, `tfds:NAME`, `pydoc:`'
    )
    corpus_options: CorpusOptions = group(CorpusOptions())
    beam: str = key(
        '', TEXT, 'flags such as `--runner=DirectRunner`, with which Apache Beam reads the text', change=VERB
    )
    data: str = override(RunKeys, 'data', about='a finished token store; empty: `WORKDIR/store`, built from `corpus`')
    tokenizer: str = override(RunKeys, 'tokenizer', about='a vocabulary; empty: that of `init`, else one is trained')
    vocab: Vocab = group(Vocab())
    architecture_from: str = key(
        'model', one_of(('model', 'init')), '`model`: config.model; `init`: the checkpoint of `init`'
    )
    embeddings: str = key('', TEXT, 'a matrix, .npy or .safetensors, of initial token embeddings')
    heldout_texts: str = key(
        '', TEXT, 'further texts to evaluate on, `NAME=PATH,NAME=PATH`; `each`: each part of a mixture'
    )

    # The tokenizer sets the vocabulary size, and config.pairs.mode decides whether there is a head for pairs.
    model: Any = group(subset(BertConfig, lambda field: field.name not in ('vocab_size', 'nsp')))
    pairs: Any = group(subset(PairOptions, lambda field: field.name != 'plans'), change=TRAINING)
    pair_plans: int = override(PairOptions, 'plans', change=TRAINING)
    masking: MaskOptions = group(MaskOptions(), change=TRAINING)

    seq_len: int = key(128, _LENGTH, 'S, positions per sequence', change=TRAINING)
    max_predictions: int = key(
        20, ROWS, 'P, most predicted positions per sequence (per row if packed)', change=TRAINING
    )
    packing: bool = key(False, about='pack several examples into a row, for less padding', change=STATE)
    batch_size: int = key(256, ROWS, 'sequences (rows if packed) per update, over all devices', change=TRAINING)
    steps: int | str = key(1_000_000, duration('epochs'), 'length of the run, a duration')
    epochs: float = key(0.0, EPOCHS, 'above 0: passes over the corpus, replaces `steps`')
    warmup_fraction: float = override(RunKeys, 'warmup_fraction', 0.01)
    optimizer: Optimizer = group(Optimizer(name='bert_adam'), change=TRAINING)
    phases: tuple[PhaseKeys, ...] = group((), each=PhaseKeys, about='phases of the run, see below', change=TRAINING)

    eval_examples: int = key(4096, whole(1, COUNT), 'held-out examples per evaluation')
    topology: str = key('', TEXT, '`run=compile`: the machine: `v5e:4x4`, `2*v5e:16x16`, or `h200:8`', change=VERB)
    find_batch: bool = key(False, about='`run=compile`: look for the largest batch that fits', change=VERB)
    distill: DistillationKeys | None = group(None, record=DistillationKeys, change=TRAINING)

    @property
    def pair_options(self) -> PairOptions:
        """config.pairs and config.pair_plans."""
        return PairOptions(plans=self.pair_plans, **dataclasses.asdict(self.pairs))
