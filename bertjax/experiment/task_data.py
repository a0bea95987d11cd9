"""A task with its tokenizer and the shape of its encoder, its records and features: what every verb about one needs."""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config import plain
from bertjax.convert.huggingface.load import read_config
from bertjax.data.buckets import choose_lengths
from bertjax.data.features import Features, cached
from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import FinetuningSettings
from bertjax.experiment.text import huggingface_directory, keep_tokenizer
from bertjax.model.config import BertConfig
from bertjax.optim.selection import make_selection, needs_unrolled
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

LEARNED = 'task.json'  # in the workdir and in its export: what the task learned, and its options


@dataclasses.dataclass(frozen=True)
class Split:
    """Records and their features."""

    records: Sequence[Any]
    features: Features


class TaskData:
    """A task's data; splits are read and tokenised when asked for.

    Attributes:
      settings: of the config.
      source: Hugging Face directory whose weights the model starts from or is; None where a checkpoint has them.
      task: of config.task.
      tokenizer: saved to WORKDIR/tokenizer.
      encoder: of the model.
      restored: whether an earlier run's `learned` said what there is to learn and to tune.
    """

    def __init__(
        self,
        settings: FinetuningSettings,
        folder: pathlib.Path,
        tokenizer: Tokenizer,
        encoder: BertConfig,
        source: str | None,
        learned: Mapping[str, Any] | None = None,
    ):
        self.settings, self.tokenizer, self.encoder, self.source = settings, tokenizer, encoder, source
        self.task: Task = settings.build_task()
        self.restored = learned is not None
        if self.restored:
            self.task.restore(learned)
        self._cache = folder / 'features'
        self._splits: dict[str, Split] = {}
        for train in settings.trained_parts:
            make_selection(train, encoder.num_layers)  # raises
        self._check()
        keep_tokenizer(tokenizer, folder, settings.tokenizer or source or '')

    def _check(self) -> None:
        pieces, rows = self.tokenizer.vocab_size, self.encoder.vocab_size
        if pieces != rows:
            mend = 'leave config.tokenizer empty to take the one that belongs to config.init'
            raise UserError('config.tokenizer', f'{pieces:,} pieces', f'{rows:,}, as the encoder has', mend)
        longest = self.encoder.max_positions
        if not 4 <= self.settings.seq_len <= longest:
            expected = f'4 to {longest}, the positions that the encoder knows'
            raise UserError('config.seq_len', str(self.settings.seq_len), expected, 'choose a length in between')

    @property
    def evaluated(self) -> list[str]:
        """The labelled splits that are not trained on. What a run chooses by is 'dev' alone."""
        return [name for name in self.task.splits() if name != 'train']

    def with_settings(self, settings: FinetuningSettings) -> 'TaskData':
        """The same, read and tokenised once, under other settings of the training."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def split(self, name: str, *, training: bool = False) -> Split:
        """Records and features of a split, read and tokenised once; the task must have learned its labels."""
        if name not in self._splits:
            split = self._splits[name] = self.tokenised(self.task.records(name), training=training)
            for note in split.features.notes:
                print(f'{name}: {note}')
        return self._splits[name]

    def tokenised(self, records: Sequence[Any], *, training: bool = False, keep: bool = True) -> Split:
        """Features of records; with `keep` from WORKDIR/features where they are there already, and put there."""
        options = (plain(self.settings.task), list(self.task.labels), self.settings.seq_len, training)
        key = (self.tokenizer.fingerprint, *options, list(records))
        make = lambda: self.task.features(records, self.tokenizer, training=training)  # noqa: E731
        return Split(records, cached(self._cache, key, make) if keep else make())

    def padded_lengths(self, splits: Sequence[Split]) -> tuple[int, ...]:
        """The lengths that all batches of these splits are padded to, at most config.shapes."""
        lengths = np.concatenate([split.features.lengths for split in splits])
        return choose_lengths(lengths, count=self.settings.shapes, longest=self.encoder.max_positions)

    def fingerprints(self) -> dict[str, str]:
        """What a run can be continued with: the encoder's sizes, the tokenizer, the labels, the training rows."""
        encoder = self.encoder
        sizes = (encoder.num_layers, encoder.width, encoder.num_heads, encoder.mlp_dim, encoder.max_positions)
        rows = self.split('train', training=True).features
        facts = {'encoder': '/'.join(map(str, sizes)), 'tokenizer': self.tokenizer.fingerprint}
        return facts | {'labels': ', '.join(self.task.labels), 'data': rows.fingerprint}

    def learned(self) -> str:
        """The text of task.json."""
        facts = {'task': plain(self.settings.task), 'learned': self.task.learned()}
        facts['encoder'] = dataclasses.asdict(self.encoder)
        return json.dumps(facts, indent=2, ensure_ascii=False) + '\n'


def data_from_source(settings: FinetuningSettings, folder: pathlib.Path) -> TaskData:
    """The task, its labels learned from the training records, with the encoder of the directory of config.init.

    Raises:
      UserError: no such directory, an encoder that does not fit the settings, malformed records.
    """
    if not settings.init:
        mend = 'for example --config.init=out/tiny, or a directory of bert-base-uncased'
        raise UserError('config.init', 'nothing', 'a Hugging Face directory or the workdir of a pre-training', mend)
    source = huggingface_directory(settings.init)
    choices = settings.model_choices
    scan = choices['scan_layers'] and not any(map(needs_unrolled, settings.trained_parts))
    encoder = read_config(source, **{**choices, 'scan_layers': scan})
    data = TaskData(settings, folder, load_tokenizer(settings.tokenizer or source), encoder, source)
    data.task.learn(data.task.records('train'))
    return data
