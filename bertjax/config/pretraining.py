"""The keys of a pre-training."""

import dataclasses
from typing import Any

from bertjax.config.distillation import DistillationKeys
from bertjax.config.ranges import COUNT, MANY, Range, duration, either, one_of, only, whole
from bertjax.config.run import EPOCHS, RATE, ROWS, TEXT, WARMUP, Optimizer, RunKeys
from bertjax.config.schema import STATE, TRAINING, VERB, group, key, keys_of, override, subset
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

    family: str = key('wordpiece', one_of(_FAMILIES), '`bpe`: byte-level; `symbols`: a piece each')
    size: int = key(30522, whole(8, 10_000_000), 'pieces of a vocabulary that is trained')
    lowercase: bool = key(True, about='lower-case the text')
    unused: int = key(0, whole(0, MANY), '`[unusedN]` slots kept for words of your own')
    model_type: str = key('unigram', one_of(('unigram', 'bpe')), 'of `sentencepiece`')
    sample_sentences: int = key(1_000_000, whole(1, COUNT), 'sentences that `sentencepiece` is trained on, at most')
    add: str = key('', TEXT, 'a file of words, a line each, that become pieces of the given vocabulary')
    candidates: int = key(0, whole(0, MANY), '`run=vocab`: list so many words for `vocab.add`, in place of a training')


def _inherited(allowed: Range, unset: Any) -> Any:
    """A key of a phase, which is the run's own where it is `unset`."""
    return key(unset, either(allowed, only(unset, "the run's own")), f"{unset!r}: the run's own")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseKeys:
    """An entry of config.phases."""

    steps: int | str = key('100%', duration('%'), 'steps, or a percentage of `steps`; together they make the whole')
    reset_optimizer: bool = key(False, about='begin with fresh moments')
    seq_len: int = _inherited(_LENGTH, 0)
    max_predictions: int = _inherited(ROWS, 0)
    batch_size: int = _inherited(ROWS, 0)
    grad_accum_steps: int = _inherited(ROWS, 0)
    learning_rate: float = _inherited(RATE, 0.0)
    warmup_fraction: float = _inherited(WARMUP, -1.0)
    schedule: str = _inherited(one_of(SCHEDULES), '')


# The keys that a phase has of its own, or inherits, and the value that stands for inheriting.
INHERITED = {name: key.default for name, key in keys_of(PhaseKeys).items() if name not in ('steps', 'reset_optimizer')}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingKeys(RunKeys):
    """BERT's own recipe (arXiv 1810.04805, google-research/bert), in one phase."""

    run: str = override(RunKeys, 'run', 'pretrain')

    corpus: str = key(
        'pydoc:', TEXT, 'text: files, globs, `A=0.7,B=0.3` by weight or `=auto` by size, `tfds:NAME`, `pydoc:`'
    )
    corpus_options: CorpusOptions = group(CorpusOptions())
    beam: str = key('', TEXT, 'flags of Apache Beam, which then reads the text: `--runner=DirectRunner`', change=VERB)
    data: str = override(RunKeys, 'data', about='a finished token store; empty: `WORKDIR/store`, built from `corpus`')
    tokenizer: str = override(RunKeys, 'tokenizer', about='a vocabulary; empty: that of `init`, else one is trained')
    vocab: Vocab = group(Vocab())
    architecture_from: str = key(
        'model', one_of(('model', 'init')), '`model`: as below; `init`: as the checkpoint of `init`'
    )
    embeddings: str = key('', TEXT, 'a matrix, .npy or .safetensors, that the token embedding begins as')
    heldout_texts: str = key('', TEXT, 'more texts to evaluate on, `NAME=PATH,NAME=PATH`; `each`: each of a mixture')

    # The vocabulary's size is the tokenizer's, and whether there is a head for pairs follows from config.pairs.mode.
    model: Any = group(subset(BertConfig, lambda field: field.name not in ('vocab_size', 'nsp')))
    pairs: Any = group(subset(PairOptions, lambda field: field.name != 'plans'), change=TRAINING)
    pair_plans: int = override(PairOptions, 'plans', change=TRAINING)
    masking: MaskOptions = group(MaskOptions(), change=TRAINING)

    seq_len: int = key(128, _LENGTH, 'S, positions a sequence', change=TRAINING)
    max_predictions: int = key(
        20, ROWS, 'P, most positions of a sequence (packed: of a row) to predict', change=TRAINING
    )
    packing: bool = key(False, about='several examples in a row, where they fit: less padding', change=STATE)
    batch_size: int = key(256, ROWS, 'sequences an update, over all devices; with `packing` rows', change=TRAINING)
    steps: int | str = key(1_000_000, duration('epochs'), 'length of the run, a duration')
    epochs: float = key(0.0, EPOCHS, 'above 0: passes over the corpus, in place of `steps`')
    warmup_fraction: float = override(RunKeys, 'warmup_fraction', 0.01)
    optimizer: Optimizer = group(Optimizer(name='bert_adam'), change=TRAINING)
    phases: tuple[PhaseKeys, ...] = group((), each=PhaseKeys, about='stretches of the run, see below', change=TRAINING)

    eval_examples: int = key(4096, whole(1, COUNT), 'held-out examples in an evaluation')
    topology: str = key('', TEXT, '`run=compile`: the machine: `v5e:4x4`, `2*v5e:16x16`, or `h200:8`', change=VERB)
    find_batch: bool = key(False, about='`run=compile`: look for the largest batch that fits', change=VERB)
    distill: DistillationKeys | None = group(None, record=DistillationKeys, change=TRAINING)

    @property
    def pair_options(self) -> PairOptions:
        """config.pairs and config.pair_plans."""
        return PairOptions(plans=self.pair_plans, **dataclasses.asdict(self.pairs))
