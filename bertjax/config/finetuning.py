"""The keys of a fine-tuning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.config.distillation import TaskDistillationKeys
from bertjax.config.ranges import COUNT, MANY, duration, each, number, one_of, text, whole, word
from bertjax.config.run import EPOCHS, RATE, ROWS, SEED, TEXT, RunKeys
from bertjax.config.schema import (
    COMMAND_LINE,
    MACHINE,
    RECIPE,
    SAME,
    STATE,
    TRAINING,
    VERB,
    group,
    key,
    override,
    subset,
)
from bertjax.model.config import BertConfig, FieldKind

_TRAINED = word('all|head|last_[1-9][0-9]{0,3}', "'all', 'head', or 'last_K' with K from 1 to the model's layers")
_DURATION = duration('%', 'epochs')
_DECAY, _NAMED = number(0, 1, above=True), text(empty=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepKeys:
    """config.sweep: every combination of the values is a run; an empty list takes the value of the config."""

    trainable: tuple = key((), each(_TRAINED), 'values of `trainable`')
    batch_size: tuple = key((), each(ROWS), 'values of `batch_size`')
    epochs: tuple = key((), each(EPOCHS), 'values of `epochs`, such as `(2.0,3.0)`')
    learning_rate: tuple = key((), each(RATE), 'values of `learning_rate`')
    seeds: tuple = key((), each(SEED), 'values of `seed`')
    together: int = key(0, whole(0, 1000), 'most runs that are trained at once; 0: as many as fit, one on a CPU')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningKeys(RunKeys):
    """The base of every recipe for a task. The defaults are those of the paper's GLUE runs (arXiv 1810.04805, appendix
    A.3): batch 32, 3 epochs, a learning rate of 2e-5 to 5e-5, warm-up over 10 % of the steps; AdamW as in transformers.

    Attributes:
      task: config.task in plain form: `kind`, and the options of that kind (bertjax/tasks/).
    """

    run: str = override(RunKeys, 'run', 'finetune')
    task: Mapping[str, Any]
    data: str = override(RunKeys, 'data', about="folder of the task's files; empty: tensorflow-datasets, if prepared")
    max_train_records: int = key(
        0, whole(0, COUNT), 'above 0: train on a fixed random sample of at most so many records'
    )
    max_eval_records: int = key(0, whole(0, COUNT), 'the same for each split that is evaluated', trained=RECIPE)

    # Only the keys that a run may choose; the sizes are those of config.init.
    model: Any = group(
        subset(BertConfig, lambda field: field.metadata['kind'] is not FieldKind.ARCHITECTURE, scan_layers=False)
    )
    trainable: str = key('all', _TRAINED, '`all`, `head`, or `last_K`: the head and the last K blocks', change=STATE)
    layer_decay: float = key(
        1.0, _DECAY, 'ratio of the learning rate of a block to that of the block above it', change=TRAINING
    )

    seq_len: int = key(128, whole(4, MANY), 'S, the most pieces of a row', change=TRAINING, trained=SAME)
    max_padded_lengths: int = key(
        0, whole(0, 1000), 'most padded lengths; 0: the cheapest number up to 8', trained=RECIPE
    )
    packing: str = key('auto', one_of(('auto', 'on', 'off')), 'pack rows; `auto`: if it is faster', change=STATE)
    batch_size: int = key(32, ROWS, 'rows per update, over all devices', change=TRAINING)
    eval_batch_size: int = key(64, ROWS, 'rows per batch in evaluation', change=MACHINE, trained=RECIPE)
    epochs: float = key(3.0, EPOCHS, 'passes over the training rows')
    steps: int | str = key(0, duration('epochs'), 'above 0: replaces `epochs`; a number, or `2epochs`')
    learning_rate: float = override(RunKeys, 'learning_rate', 2e-5)

    log_every: int = override(RunKeys, 'log_every', 20)
    eval_every: int | str = override(RunKeys, 'eval_every', '1epochs', range=_DURATION, about='0: only at the end')
    checkpoint_every: int | str = override(RunKeys, 'checkpoint_every', '1epochs', range=_DURATION)
    checkpoint_keep: int = override(RunKeys, 'checkpoint_keep', 1)
    use_checkpoint: str = key('last', one_of(('last', 'best')), 'the step to evaluate and export', trained=COMMAND_LINE)
    patience: int = key(
        0, whole(0, COUNT), 'above 0: stop after so many evaluations in a row without a better score on dev'
    )

    split: str = key('dev', _NAMED, '`evaluate`, `predict`: splits, separated by commas', change=VERB, trained=RECIPE)
    input: str = key('', TEXT, '`predict`: a file, or `-`, instead of a split', change=VERB, trained=RECIPE)
    sweep: SweepKeys = group(SweepKeys())
    benchmark: str = key('', TEXT, '`benchmark`: keys for single tasks, `rte:epochs=10,seeds=5;cola:…`', change=VERB)
    ensemble: str = key('', TEXT, '`evaluate`, `predict`: workdirs whose models form an ensemble', change=VERB)
    distill: TaskDistillationKeys | None = group(None, record=TaskDistillationKeys, change=TRAINING)
