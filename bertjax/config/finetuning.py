"""The keys of a fine-tuning run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.config.distillation import TaskDistillationKeys
from bertjax.config.ranges import COUNT, MANY, duration, integer, list_of, number, one_of, text, word
from bertjax.config.run import EPOCHS, RATE, ROWS, SEED, TEXT, RunKeys, verb_options
from bertjax.config.schema import COMMAND_LINE, MACHINE, RECIPE, SAME, STATE, TRAINING, group, key, override, subset
from bertjax.model.config import BertConfig, FieldKind

_TRAINABLE = word('all|head|last_[1-9][0-9]{0,3}', "'all', 'head', or 'last_K' with K from 1 to the model's layers")
_DURATION = duration('%', 'epochs')
_PREDICT = verb_options('evaluate', 'predict')
_DECAY, _NAMES = number(0, 1, above=True), text(empty=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepKeys:
    """The group config.sweep. Each combination of the values is a run. A key with an empty list is not swept."""

    trainable: tuple = key((), list_of(_TRAINABLE), 'values of `trainable`')
    batch_size: tuple = key((), list_of(ROWS), 'values of `batch_size`')
    epochs: tuple = key((), list_of(EPOCHS), 'values of `epochs`, such as `(2.0,3.0)`')
    learning_rate: tuple = key((), list_of(RATE), 'values of `learning_rate`')
    seeds: tuple = key((), list_of(SEED), 'values of `seed`')
    together: int = key(0, integer(0, 1000), 'at most this many runs per step; 0: all that fit (1 on CPUs)', MACHINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningKeys(RunKeys):
    """The base of every recipe for a task.

    The defaults follow BERT's GLUE runs (arXiv 1810.04805, section 4.1; google-research/bert, run_classifier.py): batch
    32, 3 epochs, warm-up over 10 % of the steps. The optimizer is AdamW as in transformers.

    Attributes:
      task: The group config.task as a dict: `kind`, and the options of this kind (bertjax/tasks/).
    """

    run: str = override(RunKeys, 'run', 'finetune')
    task: Mapping[str, Any]
    data: str = override(RunKeys, 'data', about="the folder of the task's files; empty: from tensorflow-datasets")
    max_train_records: int = key(0, integer(0, COUNT), 'train on a fixed random sample of at most this size; 0: all')
    max_eval_records: int = key(
        0, integer(0, COUNT), 'evaluate on a random sample of at most this size; 0: all', trained=RECIPE
    )

    # config.init decides the architecture.
    model: Any = group(
        subset(BertConfig, lambda field: field.metadata['kind'] is not FieldKind.ARCHITECTURE, scan_layers=False)
    )
    trainable: str = key('all', _TRAINABLE, 'the part to train; `last_K`: the head and the last K blocks', STATE)
    layer_decay: float = key(1.0, _DECAY, 'the ratio of the learning rates of a block and the next block', TRAINING)

    seq_len: int = key(128, integer(4, MANY), 'the maximal number of pieces of a row', TRAINING, SAME)
    max_padded_lengths: int = key(
        0, integer(0, 1000), 'pad rows to at most this many lengths; 0: the best up to 8; in sweeps 8', trained=RECIPE
    )
    packing: str = key('auto', one_of(('auto', 'on', 'off')), 'whether to pack rows; `auto`: on CPUs, if faster', STATE)
    batch_size: int = key(32, ROWS, 'the number of rows per update, over all devices', STATE)
    eval_batch_size: int = key(64, ROWS, 'the number of rows per batch in evaluation', MACHINE, RECIPE)
    epochs: float = key(3.0, EPOCHS, 'the number of passes over the training rows')
    steps: int | str = key(0, duration('epochs'), 'the length of the run, such as `2epochs`; 0: from `epochs`')
    learning_rate: float = override(RunKeys, 'learning_rate', 2e-5)

    log_every: int = override(RunKeys, 'log_every', 20)
    eval_every: int | str = override(
        RunKeys,
        'eval_every',
        '1epochs',
        range=_DURATION,
        about='the interval between evaluations; 0: only at the end, and at the start if `init` has the head',
    )
    checkpoint_every: int | str = override(RunKeys, 'checkpoint_every', '1epochs', range=_DURATION)
    checkpoint_keep: int = override(RunKeys, 'checkpoint_keep', 1)
    use_checkpoint: str = key(
        'last', one_of(('last', 'best')), 'the checkpoint to evaluate and export', trained=COMMAND_LINE
    )
    patience: int = key(0, integer(0, COUNT), 'stop after this many evaluations without a new best on dev; 0: never')

    split: str = key('dev', _NAMES, '`evaluate`, `predict`: splits, separated by commas', **_PREDICT)
    input: str = key('', TEXT, '`predict`: a file instead of a split; `-`: standard input', **verb_options('predict'))
    sweep: SweepKeys = group(SweepKeys())
    benchmark: str = key(
        '', TEXT, '`benchmark`: keys for single tasks, as in `rte:epochs=9,seeds=5;cola:…`', **verb_options('benchmark')
    )
    ensemble: str = key('', TEXT, '`evaluate`, `predict`: workdirs whose models form an ensemble', **_PREDICT)
    distill: TaskDistillationKeys | None = group(None, record=TaskDistillationKeys, change=TRAINING)
