"""The keys of a pre-training run."""

import dataclasses
from typing import Any

from bertjax.config.distillation import DistillationKeys
from bertjax.config.ranges import COUNT, MANY, Range, duration, either, integer, number, one_of, special, word
from bertjax.config.run import BELOW_ONE, EPOCHS, FRACTION, RATE, ROWS, TEXT, Optimizer, RunKeys, verb_options
from bertjax.config.schema import STATE, TRAINING, VERB, group, key, override, subset
from bertjax.corpus.sources import CorpusOptions
from bertjax.data.masking import MASK_RATE, MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import SCHEDULES

_LENGTH = integer(8, MANY)
_BUDGET = word(r'|\d+(\.\d+)?([smhd]|e\d{1,2})', 'text: a time such as 25m, operations such as 3e15, or empty')
_COMPILE = verb_options('compile')
_SENTENCEPIECE = ('family', 'sentencepiece')  # see `used_with` in schema.Key
_FAMILIES = ('wordpiece', 'sentencepiece', 'bpe', 'symbols')


@dataclasses.dataclass(frozen=True)
class Vocab:
    """The group config.vocab."""

    family: str = key('wordpiece', one_of(_FAMILIES), 'the tokenizer; `bpe`: byte-level; `symbols`: a piece per symbol')
    size: int = key(30522, integer(8, 10_000_000), 'the maximal number of pieces of a trained vocabulary')
    lowercase: bool = key(True, about='lower-case the text')
    unused: int = key(0, integer(0, MANY), 'the number of pieces `[unusedN]`, reserved for words that you add later')
    model_type: str = key('unigram', one_of(('unigram', 'bpe')), '`sentencepiece`: the model', used_with=_SENTENCEPIECE)
    sample_sentences: int = key(
        1_000_000, integer(1, COUNT), '`sentencepiece`: train on at most this many sentences', used_with=_SENTENCEPIECE
    )
    add: str = key('', TEXT, 'a file with one word per line; the words become pieces of an existing vocabulary')
    candidates: int = key(0, integer(0, MANY), '`run=vocab`: only list at most this many words for `vocab.add`')


def _inherited(allowed: Range, unset: Any, run_key: str = '') -> Any:
    """Declares a key of a phase that, if `unset`, has the value of the key `run_key` ('': the same name) of the run."""
    about = f'the {f"`{run_key}` " if run_key else "value "}in this phase'
    return key(unset, either(allowed, special(unset, 'the value of the run')), about, run_key=run_key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseKeys:
    """An entry of config.phases."""

    steps: int | str = key('100%', duration('%'), 'the length in steps or in percent of the run; all add up to 100%')
    reset_optimizer: bool = key(False, about='reset the moments of the optimizer at the start')
    seq_len: int = _inherited(_LENGTH, 0)
    max_predictions: int = _inherited(ROWS, 0)
    batch_size: int = _inherited(ROWS, 0)
    batch_ramp: float = key(0.0, BELOW_ONE, 'the fraction of the phase in which the batch grows', run_key=None)
    batch_size_start: int = key(
        0, either(ROWS, special(0, 'no `batch_ramp`')), 'the rows per update at the start of `batch_ramp`', run_key=None
    )
    grad_accum_steps: int = _inherited(ROWS, 0)
    learning_rate: float = _inherited(RATE, 0.0)
    warmup_fraction: float = _inherited(BELOW_ONE, -1.0)
    schedule: str = _inherited(one_of(SCHEDULES), '', 'schedule.name')
    decay_fraction: float = _inherited(FRACTION, -1.0, 'schedule.decay_fraction')
    mask_rate: float = _inherited(MASK_RATE, 0.0, 'masking.rate')
    final_mask_rate: float = _inherited(MASK_RATE, -1.0, 'masking.final_rate')


# UNSET is {key of a phase: the default, which means that the phase does not set the key}. INHERITED is {key of a phase:
# the key of the run from which an unset key takes its value}.
UNSET = {field.name: field.default for field in dataclasses.fields(PhaseKeys) if 'run_key' in field.metadata}
INHERITED = {
    field.name: field.metadata['run_key'] or field.name
    for field in dataclasses.fields(PhaseKeys)
    if field.metadata.get('run_key') is not None
}
# The keys of config.model that config.budget chooses. The keys in BUDGET_SIZE are chosen together.
BUDGET_SIZE = ('num_layers', 'width', 'num_heads', 'mlp_dim')
BUDGET_CHOICES = (*BUDGET_SIZE, 'dtype')
# The keys of config.model that may differ from config.init in a model with rotary positions, because no parameter
# depends on them.
ROTARY_FIELDS = ('max_positions', 'rope_theta', 'rope_local_theta')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingKeys(RunKeys):
    """The recipe of BERT (arXiv 1810.04805, google-research/bert), in one phase."""

    run: str = override(RunKeys, 'run', 'pretrain')

    corpus: str = key(
        'pydoc:',
        TEXT,
        'the text: files, globs, a mixture `A=0.7,B=0.3` by weight or `A=auto,B=auto` by size, `tfds:NAME`, `pydoc:`',
    )
    corpus_options: CorpusOptions = group(CorpusOptions())
    beam: str = key('', TEXT, 'read the text with Apache Beam and these flags, such as `--runner=DirectRunner`', VERB)
    data: str = override(RunKeys, 'data', about='a finished token store; empty: `WORKDIR/store`, built from `corpus`')
    tokenizer: str = override(RunKeys, 'tokenizer', about='a vocabulary; empty: the vocabulary of `init`, or a new one')
    vocab: Vocab = group(Vocab())
    architecture_from: str = key(
        'model',
        one_of(('model', 'init', 'budget')),
        'the keys of `model`, the model of `init`, or `model` with a size, a dtype and a batch for `budget`',
    )
    embeddings: str = key('', TEXT, 'a .npy or .safetensors file with the initial token embeddings')
    heldout_texts: str = key('', TEXT, 'texts to evaluate on, `NAME=PATH,…`; `each`: the held-out part of each corpus')
    heldout_pairs: str = key('', TEXT, 'a file as for `run=minimal_pairs`; at most `eval_examples` pairs are used')

    # The tokenizer decides `vocab_size`, and config.pairs.mode decides `nsp`. `param_dtype` is always float32: in
    # bfloat16, small updates would be lost, and the second moment would not decay, because 0.999 is rounded to 1.
    model: Any = group(subset(BertConfig, lambda field: field.name not in ('vocab_size', 'nsp', 'param_dtype')))
    pairs: Any = group(subset(PairOptions, lambda field: field.name != 'plans'), change=TRAINING)
    pair_plans: int = override(PairOptions, 'plans', change=TRAINING)
    masking: MaskOptions = group(MaskOptions(), change=TRAINING)

    seq_len: int = key(128, _LENGTH, 'the number of positions per sequence', TRAINING)
    max_predictions: int = key(20, ROWS, 'the maximal number of predictions per sequence (row if packed)', TRAINING)
    z_loss: float = key(0.0, number(0, 1), 'the weight of the z-loss, (log of the softmax normalizer)²', TRAINING)
    packing: bool = key(False, about='pack several examples into a row, for less padding', change=STATE)
    batch_size: int = key(256, ROWS, 'the number of sequences (rows if packed) per update, over all devices', TRAINING)
    steps: int | str = key(1_000_000, duration('epochs'), 'the length of the run', used_with=('epochs', 0))
    epochs: float = key(0.0, EPOCHS, 'the length of the run in passes over the corpus, instead of `steps`; 0: `steps`')
    budget: str = key('', _BUDGET, 'the wall time or floating-point operations of the run, instead of `steps`', STATE)
    replay: str = key('', TEXT, 'the workdir of a finished run with the same `budget`, to repeat its decisions', VERB)
    warmup_fraction: float = override(RunKeys, 'warmup_fraction', 0.01)
    optimizer: Optimizer = group(Optimizer(name='bert_adam'), change=TRAINING)
    phases: tuple[PhaseKeys, ...] = group((), entry=PhaseKeys, about='the phases, see below', change=TRAINING)

    eval_examples: int = key(4096, integer(1, COUNT), 'the maximal number of held-out examples per evaluation')
    topology: str = key('', TEXT, '`compile`, `doctor`: a machine like `v5e:4x4`, `2*v5e:16x16`, `h200:8`', **_COMPILE)
    find_batch: bool = key(False, about='`compile`: double the batch while it fits, else halve it', **_COMPILE)
    distill: DistillationKeys | None = group(None, record=DistillationKeys, change=TRAINING)

    @property
    def pair_options(self) -> PairOptions:
        """The options of config.pairs together with config.pair_plans."""
        return PairOptions(plans=self.pair_plans, **dataclasses.asdict(self.pairs))
