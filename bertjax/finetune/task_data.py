"""A task with its tokenizer and the shape of its encoder, its records and features: what every verb about one needs."""

import copy
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.plain import plain
from bertjax.convert.load import read_config
from bertjax.data.features import Features, load_or_build
from bertjax.data.hashing import Stream, hash_bits
from bertjax.data.length_buckets import best_length_count, choose_lengths
from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.optim.selection import make_selection, needs_unrolled
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import keep_tokenizer

# What one more padded length costs to compile, in processor seconds: a part that is the same for every encoder, and one
# for each of its blocks; of training, and of evaluation. And the FLOPs that a step does in such a second. Measured with
# encoders of 2 to 12 blocks (x86-64 with AVX-512, jax 0.10.2, docs/performance.md). An accelerator compiles all lengths
# side by side and computes faster, but a run must not be another one there.
COMPILING = {True: (3.0, 0.35), False: (0.5, 0.08)}
FLOPS = 1e11
TASK_FILE = 'task.json'  # in the workdir and in its export: what the task learned, and its options


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """Records and their features.

    Attributes:
      records: of the task.
      features: of all of them.
      of: of how many records these are a part; 0 if they are all.
      open: whether more may follow, of any length: the first of a stream.
    """

    records: Sequence[Any]
    features: Features
    of: int = 0
    open: bool = False


class TaskData:
    """A task's data; splits are read and tokenised when asked for.

    Attributes:
      settings: of the config.
      source: Hugging Face directory whose weights the model starts from or is; None where a checkpoint has them.
      task: of config.task.
      tokenizer: saved to WORKDIR/tokenizer.
      encoder: of the model.
      finished: whether what there is to learn and to tune is that of a finished run.
    """

    def __init__(
        self,
        settings: FinetuningSettings,
        folder: pathlib.Path,
        tokenizer: Tokenizer,
        encoder: BertConfig,
        source: str | None,
        facts: Mapping[str, Any] | None = None,
    ):
        """`facts` are those of the task.json of an earlier run, see `learned`."""
        self.settings, self.tokenizer, self.encoder, self.source = settings, tokenizer, encoder, source
        self.task: Task = settings.build_task()
        self.finished = facts is not None and facts.get('finished', True)
        if facts is not None:
            self.task.restore(facts['learned'])
        self._cache = folder / 'features'
        self._splits: dict[str, TaskSplit] = {}
        self._read: dict[str, Sequence[Any]] = {}  # that `split` has not taken yet
        for train in settings.trained_parts:
            make_selection(train, encoder.num_layers)  # raises
        self._check()
        keep_tokenizer(tokenizer, folder, settings.tokenizer or source or '')

    def _check(self) -> None:
        pieces, rows = self.tokenizer.vocab_size, self.encoder.vocab_size
        if pieces != rows:
            fix = 'leave config.tokenizer empty to take the one that belongs to config.init'
            raise UserError('config.tokenizer', f'{pieces:,} pieces', f'{rows:,}, as the encoder has', fix)
        longest = self.encoder.max_positions
        if not 4 <= self.settings.seq_len <= longest:
            expected = f'4 to {longest}, the positions that the encoder knows'
            raise UserError('config.seq_len', str(self.settings.seq_len), expected, 'choose a length in between')

    @functools.cached_property  # a test file is read for its labels
    def evaluated(self) -> list[str]:
        """The labelled splits that are not trained on. What a run chooses by is 'dev' alone."""
        return [name for name in self.task.splits() if name != 'train']

    def learn(self) -> None:
        """Lets the task learn its labels from the training records.

        Raises:
          UserError: malformed records, or labels that can hardly be meant.
        """
        self._read['train'] = self.task.records('train')
        self.task.learn(self._read['train'])

    def with_settings(self, settings: FinetuningSettings) -> 'TaskData':
        """The same, read and tokenised once, under other settings of the training."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def split(self, name: str, *, training: bool = False, whole: bool = False) -> TaskSplit:
        """Records and features of a split, read and tokenised once; the task must have learned its labels.

        Without `whole`, they are config.max_train_records or max_eval_records of them at most.
        """
        if name not in self._splits:
            records = self._read.pop(name, None) or self.task.records(name)
            key = 'max_train_records' if name == 'train' else 'max_eval_records'
            most = 0 if whole else getattr(self.settings, key)
            part = records if not 0 < most < len(records) else [records[i] for i in sample(len(records), most)]
            split = self.tokenised(part, training=training)
            if len(part) < len(records):
                split = dataclasses.replace(split, of=len(records))
                print(f'{name}: {len(part):,} of {len(records):,} records, a fixed random sample (config.{key})')
            self._splits[name] = split
            for note in split.features.notes:
                print(f'{name}: {note}')
        return self._splits[name]

    def replace_features(self, name: str, features: Features) -> None:
        """Gives the records of a split, which must have been read, other rows."""
        self._splits[name] = dataclasses.replace(self._splits[name], features=features)
        print(f'{name}: {features.notes[-1]}')

    def parts(self, names: Iterable[str]) -> dict[str, str]:
        """{split: '500 of 872 records'} of those that are parts."""
        splits = {name: self.split(name) for name in names}
        return {name: f'{len(x.records):,} of {x.of:,} records' for name, x in splits.items() if x.of}

    def tokenised(self, records: Sequence[Any], *, training: bool = False, keep: bool = True) -> TaskSplit:
        """Features of records; with `keep` from WORKDIR/features where they are there already, and put there."""
        options = (plain(self.settings.task), list(self.task.labels), self.settings.seq_len, training)
        if self.tokenizer.separators > 1:  # no part of a tokenizer's fingerprint, which is of ids alone
            options += (self.tokenizer.separators,)
        key = (self.tokenizer.fingerprint, *options, list(records))
        make = lambda: self.task.features(records, self.tokenizer, training=training)  # noqa: E731
        return TaskSplit(records, load_or_build(self._cache, key, make) if keep else make())

    def padded_lengths(self, splits: Sequence[TaskSplit], count: int) -> tuple[int, ...]:
        """The lengths that all batches of these splits are padded to, at most `count`."""
        lengths = np.concatenate([split.features.lengths for split in splits])
        if any(split.open for split in splits):  # as if each length had as many rows as all shorter ones
            lengths = np.geomspace(4, self.settings.seq_len, 64).astype(np.int64)
        return choose_lengths(lengths, count=count, longest=self.encoder.max_positions)

    def best_length_count(self, splits: Sequence[TaskSplit], passes: float, *, training: bool) -> int:
        """How many padded lengths are worth compiling for so many passes over these splits."""
        encoder, choices = self.encoder, splits[0].features.choices
        once, block = COMPILING[training]
        share = passes * choices * (1 if training else 1 / 3)  # the backward pass is two thirds
        return best_length_count(
            np.concatenate([split.features.lengths for split in splits]),
            lambda length: share * train_flops_per_sequence(encoder, length, 0),
            compile_cost=FLOPS * (once + block * encoder.num_layers),
            longest=encoder.max_positions,
        )

    def fingerprints(self) -> dict[str, str]:
        """What a run can be continued with: the encoder's sizes, the tokenizer, the labels, the training rows."""
        encoder = self.encoder
        sizes = (encoder.num_layers, encoder.width, encoder.num_heads, encoder.mlp_dim, encoder.max_positions)
        rows = self.split('train', training=True).features
        facts = {'encoder': '/'.join(map(str, sizes)), 'tokenizer': self.tokenizer.fingerprint}
        return facts | {'labels': ', '.join(self.task.labels), 'data': rows.fingerprint}

    def learned(self, *, finished: bool = True) -> str:
        """The text of task.json; without `finished`, nothing has been tuned on dev yet."""
        return task_json(plain(self.settings.task), self.task, self.encoder, self.settings.seq_len, finished=finished)


def task_json(
    options: Mapping[str, Any], task: Task, encoder: BertConfig, seq_len: int, *, finished: bool = True
) -> str:
    """The text of task.json.

    Args:
      options: of the task, with its kind, in plain form.
      task: with what it has learned.
      encoder: of the model.
      seq_len: S, the longest sequence.
      finished: whether the training is.
    """
    facts: dict[str, Any] = {'task': dict(options), 'learned': task.learned()}
    facts |= {'encoder': dataclasses.asdict(encoder), 'seq_len': seq_len}
    if not finished:
        facts['finished'] = False
    return json.dumps(facts, indent=2, ensure_ascii=False) + '\n'


def sample(count: int, most: int) -> list[int]:
    """`most` of the numbers below `count`, ascending: those with the lowest hash.

    A smaller sample is a part of a larger one, and no seed changes it: runs are compared on the same records.
    """
    order = np.argsort(hash_bits(0, Stream.SAMPLE, np.arange(count)), kind='stable')
    return np.sort(order[:most]).tolist()


def encoder_of(settings: FinetuningSettings, source: str) -> BertConfig:
    """The encoder of a Hugging Face directory, computed as the settings choose."""
    choices = dataclasses.asdict(settings.model)
    scan = choices['scan_layers'] and not any(map(needs_unrolled, settings.trained_parts))
    return read_config(source, **{**choices, 'scan_layers': scan})


def data_from_source(settings: FinetuningSettings, folder: pathlib.Path) -> TaskData:
    """The task, its labels learned from the training records, with the encoder of the directory of config.init.

    Raises:
      UserError: no such directory, an encoder that does not fit the settings, malformed records.
    """
    source = huggingface_directory(settings.init)
    tokenizer = load_tokenizer(settings.tokenizer or source)
    return learned_data(TaskData(settings, folder, tokenizer, encoder_of(settings, source), source))


def learned_data(data: TaskData) -> TaskData:
    """The same, whose task has learned its labels; says where its records are from."""
    data.learn()
    sources = data.task.sources()
    if sources:
        print(sources)
    return data
