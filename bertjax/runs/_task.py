"""What every verb about a task needs first: the task, its tokenizer, its model, its records and features."""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import linen as nn
from ml_collections import ConfigDict

from bertjax.config import duration, plain
from bertjax.convert.huggingface.load import read_config
from bertjax.data.buckets import choose_lengths
from bertjax.data.features import Features, cached
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import make_schedule
from bertjax.optim.selection import make_selection, needs_unrolled
from bertjax.runs import _settings as settings
from bertjax.runs._text import check_replaceable, huggingface_directory
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

LEARNED = 'task.json'  # in the workdir and in its export: what the task learned, and its options


@dataclasses.dataclass(frozen=True)
class Split:
    """Records and their features."""

    records: Sequence[Any]
    features: Features


class TaskData:
    """A task with its tokenizer and the shape of its encoder; splits are read and tokenised when asked for.

    Attributes:
      config: the recipe's.
      source: Hugging Face directory whose weights the model starts from or is; None where a checkpoint has them.
      task: of config.task.
      tokenizer: saved to WORKDIR/tokenizer.
      encoder: of the model.
      restored: whether an earlier run's `learned` said what there is to learn and to tune.
    """

    def __init__(
        self,
        config: ConfigDict,
        folder: pathlib.Path,
        tokenizer: Tokenizer,
        encoder: BertConfig,
        source: str | None,
        learned: Mapping[str, Any] | None = None,
    ):
        self.config, self.tokenizer, self.encoder, self.source = config, tokenizer, encoder, source
        self.task: Task = task_of(config)
        self.restored = learned is not None
        if self.restored:
            self.task.restore(learned)
        self._cache = folder / 'features'
        self._splits: dict[str, Split] = {}
        for train in {config.train, *config.sweep.train}:
            make_selection(train, encoder.num_layers)  # raises
        self._check()
        own = folder / 'tokenizer'
        if not own.exists() or load_tokenizer(str(own)).fingerprint != tokenizer.fingerprint:
            check_replaceable(own, folder)
            tokenizer.save(own)

    def _check(self) -> None:
        pieces, rows = self.tokenizer.vocab_size, self.encoder.vocab_size
        if pieces != rows:
            mend = 'leave config.tokenizer empty to take the one that belongs to config.init'
            raise UserError('config.tokenizer', f'{pieces:,} pieces', f'{rows:,}, as the encoder has', mend)
        longest = self.encoder.max_positions
        if not 4 <= self.config.seq_len <= longest:
            expected = f'4 to {longest}, the positions that the encoder knows'
            raise UserError('config.seq_len', str(self.config.seq_len), expected, 'choose a length in between')

    @property
    def evaluated(self) -> list[str]:
        """The labelled splits that are not trained on. What a run chooses by is 'dev' alone."""
        return [name for name in self.task.splits() if name != 'train']

    def with_config(self, config: ConfigDict) -> 'TaskData':
        """The same, read and tokenised once, under a config with other settings of the training."""
        other = copy.copy(self)
        other.config = config
        return other

    def model(self) -> nn.Module:
        """The encoder with the task's head; the task must have learned its labels."""
        return self.task.model(self.encoder)

    def split(self, name: str, *, training: bool = False) -> Split:
        """Records and features of a split, read and tokenised once; the task must have learned its labels."""
        if name not in self._splits:
            split = self._splits[name] = self.tokenised(self.task.records(name), training=training)
            for note in split.features.notes:
                print(f'{name}: {note}')
        return self._splits[name]

    def tokenised(self, records: Sequence[Any], *, training: bool = False, keep: bool = True) -> Split:
        """Features of records; with `keep` from WORKDIR/features where they are there already, and put there."""
        options = (plain(self.config.task), list(self.task.labels), self.config.seq_len, training)
        key = (self.tokenizer.fingerprint, *options, list(records))
        make = lambda: self.task.features(records, self.tokenizer, training=training)  # noqa: E731
        return Split(records, cached(self._cache, key, make) if keep else make())

    def fingerprints(self) -> dict[str, str]:
        """What a run can be continued with: the encoder's sizes, the tokenizer, the labels, the training rows."""
        encoder = self.encoder
        sizes = (encoder.num_layers, encoder.width, encoder.num_heads, encoder.mlp_dim, encoder.max_positions)
        rows = self.split('train', training=True).features
        facts = {'encoder': '/'.join(map(str, sizes)), 'tokenizer': self.tokenizer.fingerprint}
        return facts | {'labels': ', '.join(self.task.labels), 'data': rows.fingerprint}

    def learned(self) -> str:
        """The text of task.json."""
        facts = {'task': plain(self.config.task), 'learned': self.task.learned()}
        facts['encoder'] = dataclasses.asdict(self.encoder)
        return json.dumps(facts, indent=2, ensure_ascii=False) + '\n'


def task_of(config: ConfigDict) -> Task:
    """The task of a recipe.

    Raises:
      UserError: the recipe has none, or an option of it is wrong.
    """
    if 'task' not in config:
        mend = 'give a recipe of a task, such as configs/glue.py:rte'
        raise UserError('--config', 'a recipe without config.task', 'one for a task', mend)
    options = {name: config.task[name] for name in config.task if name != 'kind'}
    return build_task(config.task.kind, data=config.data, seq_len=config.seq_len, **options)


def data_from_source(config: ConfigDict, folder: pathlib.Path) -> TaskData:
    """The task, its labels learned from the training records, with the encoder of the directory of config.init."""
    if not config.init:
        mend = 'for example --config.init=out/tiny, or a directory of bert-base-uncased'
        raise UserError('config.init', 'nothing', 'a Hugging Face directory or the workdir of a pre-training', mend)
    source = huggingface_directory(config.init)
    scan = config.model.scan_layers and not any(map(needs_unrolled, (config.train, *config.sweep.train)))
    encoder = read_config(source, **{**config.model, 'scan_layers': scan})
    data = TaskData(config, folder, load_tokenizer(config.tokenizer or source), encoder, source)
    data.task.learn(data.task.records('train'))
    return data


def padded_lengths(data: TaskData, features: Sequence[Features]) -> tuple[int, ...]:
    """The lengths that all batches are padded to, at most config.shapes."""
    lengths = np.concatenate([part.lengths for part in features])
    return choose_lengths(lengths, count=data.config.shapes, longest=data.encoder.max_positions)


def total_steps(config: ConfigDict, batches: int) -> int:
    """Length of the run, of epochs with `batches` batches each."""
    steps = duration(config.steps, 'steps', steps_per_epoch=batches)
    if not steps:
        steps = duration(f'{config.epochs} epochs', 'epochs', steps_per_epoch=batches)
    if steps < 1:
        raise UserError('config.epochs', str(config.epochs), 'at least one step', 'for example --config.epochs=3')
    return steps


def check_numbers(config: ConfigDict) -> None:
    """What can be wrong in a recipe for a task without a look at the data."""
    settings.rng_impl(config)
    make_schedule(config.schedule.name, peak=1.0, steps=100, warmup_fraction=config.warmup_fraction)
    least = {'batch_size': 1, 'eval_batch_size': 1, 'accumulate': 1, 'shapes': 1, 'log_every': 1, 'checkpoint_keep': 1}
    for key, number in least.items():
        if config[key] < number:
            raise UserError(f'config.{key}', str(config[key]), f'at least {number}', f'raise config.{key}')
    if config.batch_size % config.accumulate:
        expected = f'a divisor of batch_size = {config.batch_size}'
        raise UserError('config.accumulate', str(config.accumulate), expected, 'change one of the two')
    if not config.learning_rate > 0:
        raise UserError('config.learning_rate', str(config.learning_rate), 'a number above 0', 'for example 2e-5')
    if not 0 < config.layer_decay <= 1:
        raise UserError('config.layer_decay', str(config.layer_decay), 'a share above 0, to 1', 'for example 0.9')
    for name in config.seeds:
        settings.seed_of(config, name)
    if config.sweep.together < 0:
        expected = 'how many, or 0 for as many as fit'
        raise UserError('config.sweep.together', str(config.sweep.together), expected, 'leave it 0')
    if config.task.get('frozen') and config.train != 'head':
        found = f'{config.train!r} with config.task.frozen'
        raise UserError('config.train', found, "'head', for the encoder is frozen", 'set config.task.frozen=False')
    if config.select not in ('last', 'best'):
        raise UserError('config.select', repr(config.select), "'last' or 'best'", 'choose one of the two')
