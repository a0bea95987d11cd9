"""The data of a task for training, evaluation and prediction: tokenizer, encoder config, records and features."""

import copy
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.plain import to_plain
from bertjax.convert.load import read_config
from bertjax.data.batch import count_batches
from bertjax.data.features import Features, describe_unknown_pieces, load_or_build
from bertjax.data.hashing import Stream, hash_bits
from bertjax.data.length_buckets import MAX_LENGTHS, best_length_count, choose_lengths
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.settings import FinetuningSettings
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.optim.trainable import make_selection, needs_unrolled
from bertjax.tasks.task import Task
from bertjax.text.added_words import find_previous_ids, load_model_tokenizer
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import FOLDER, load_workdir_tokenizer, set_workdir_tokenizer

# COMPILE_TIME and FLOPS were measured with encoders of 2 to 12 blocks and jax 0.10.2, on the CPU that
# docs/performance.md describes. Accelerators compute faster and compile all lengths in parallel, but the same constants
# are used for them, so that a run with padded rows has the same batches on all platforms.
# The CPU time to compile one more padded length: {whether for training: (fixed seconds, seconds per block)}.
COMPILE_TIME = {True: (3.0, 0.35), False: (0.5, 0.08)}
FLOPS = 1e11  # the FLOPs that a training step computes per CPU second
TASK_FILE = 'task.json'  # the file in the workdir and in exports with the options, labels and thresholds of the task


@dataclasses.dataclass(frozen=True)
class TaskSplit:
    """Records and their features.

    Attributes:
      population: The number of all records of the split if `records` is a sample; else 0.
      is_stream: Whether the records are the first batch of a stream. Later records may then have any length.
    """

    records: Sequence[Any]
    features: Features
    population: int = 0
    is_stream: bool = False

    def total_steps(self, settings: FinetuningSettings) -> int:
        """Returns the number of steps of a training on the rows. Raises a UserError if it would be 0."""
        return settings.total_steps(count_batches(len(self.features), settings.batch_size))

    def passes(self, settings: FinetuningSettings) -> float:
        """Returns how often a training passes over the rows. Raises a UserError if the training has no step."""
        return self.total_steps(settings) * settings.batch_size / len(self.features)


class TaskData:
    """The data of a task. Splits are read and tokenized on demand.

    Attributes:
      source: The directory of the initial or final weights; the workdir if only checkpoints have the weights; '' if a
        resumed run does not need initial weights.
      tokenizer: The tokenizer, which is also saved to WORKDIR/tokenizer.
      finished: Whether the labels of the task come from a finished run.
      thresholds_tuned: Whether the thresholds of the task are tuned on dev.
    """

    def __init__(
        self,
        settings: FinetuningSettings,
        folder: pathlib.Path,
        tokenizer: Tokenizer,
        encoder: BertConfig,
        source: str,
        facts: Mapping[str, Any] | None = None,
    ):
        """`facts` is the content of task.json, or None if the model does not have this file."""
        self.settings, self.tokenizer, self.encoder, self.source = settings, tokenizer, encoder, source
        self.task: Task = settings.build_task()
        self.finished = facts is not None and facts.get('finished', True)
        self.thresholds_tuned = self.finished and facts.get('tuned', True)
        state = _adopted_state(settings, self.task, folder) if facts is None else facts['learned']
        if state is not None:
            self.task.restore(state)
        elif source and (self.task.adopts or not has_checkpoints(folder)):  # a resumed run does not load `source`
            self.task.adopt(source)
        self._cache = folder / 'features'
        self._splits: dict[str, TaskSplit] = {}
        self._records: dict[str, Sequence[Any]] = {}  # records that are read but not tokenized yet
        for trainable in settings.trained_parts:
            make_selection(trainable, encoder.num_layers)  # raises a UserError if the encoder lacks these blocks
        pieces, rows = tokenizer.vocab_size, encoder.vocab_size
        if pieces > rows:  # a published model may have more rows than pieces, but not fewer
            fix = f'resize the model with resize_token_embeddings({pieces}) of transformers'
            raise UserError('config.init', f'{pieces:,} pieces', f'{rows:,}, as in the encoder', fix)
        if not 4 <= settings.seq_len <= encoder.max_positions:
            expected = f'4 to {encoder.max_positions}, the positions of the encoder'
            raise UserError('config.seq_len', str(settings.seq_len), expected, 'choose a length in between')
        set_workdir_tokenizer(tokenizer, folder, settings.tokenizer or source)

    @functools.cached_property  # cached because `Task.splits` reads the test file to check whether it has labels
    def eval_splits(self) -> list[str]:
        """The names of the labeled splits to evaluate on. Only 'dev' is used for model selection."""
        return [name for name in self.task.splits() if name != 'train']

    def learn(self) -> None:
        """Lets the task learn from the training records, and prints the files of all splits. For errors, see `Task`."""
        self._records['train'] = self.task.records('train')
        self.task.learn(self._records['train'])
        if sources := self.task.sources():
            print(sources)

    def with_settings(self, settings: FinetuningSettings) -> 'TaskData':
        """Returns a copy with other training settings. The copies share records and features."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def split(self, name: str, *, training: bool = False, all_records: bool = False) -> TaskSplit:
        """Returns a split, which the first call reads and tokenizes. Later calls ignore all arguments but `name`.

        The task must already know its labels. `training` tells whether the split is trained on. Unless `all_records`,
        config.max_train_records and config.max_eval_records limit the split to a sample.
        """
        if name not in self._splits:
            records = self._records.pop(name, None) or self.task.records(name)
            key = 'max_train_records' if name == 'train' else 'max_eval_records'
            limit = 0 if all_records else getattr(self.settings, key)
            part = sample_records(records, limit)
            if len(part) < len(records) and self.task.needs_neighbors:
                fix = 'set it to 0, or remove documents from the file'
                raise UserError(f'config.{key}', f'{limit} with config.task.context', 'whole documents', fix)
            split = self.tokenize(part, training=training)
            if len(part) < len(records):
                split = dataclasses.replace(split, population=len(records))
                print(f'{name}: {len(part):,} of {len(records):,} records, a fixed random sample (config.{key})')
            self._splits[name] = split
            counts = split.features.unknown_counts(self.tokenizer)
            for note in (*split.features.notes, *describe_unknown_pieces(counts, self.tokenizer)):
                print(f'{name}: {note}')
        return self._splits[name]

    def replace_features(self, name: str, features: Features) -> None:
        """Replaces the features of a split that `split` has returned before."""
        self._splits[name] = dataclasses.replace(self._splits[name], features=features)
        print(f'{name}: {features.notes[-1]}')

    def parts(self, names: Iterable[str]) -> dict[str, str]:
        """Returns {split: a description such as '500 of 872 records'} for the splits that are samples."""
        samples = {name: split for name in names if (split := self.split(name)).population}
        return {name: f'{len(split.records):,} of {split.population:,} records' for name, split in samples.items()}

    def tokenize(self, records: Sequence[Any], *, training: bool = False, cache: bool = True) -> TaskSplit:
        """Tokenizes records, and caches their features in WORKDIR/features if `cache` is True."""
        options = (to_plain(self.settings.task), list(self.task.labels), self.settings.seq_len, training)
        if self.tokenizer.separators > 1:  # the fingerprint of a tokenizer does not depend on its separators
            options += (self.tokenizer.separators,)
        if form := self.task.learned_state().get('form'):  # it determines the prompt of documents, see EmbeddingTask
            options += (form,)
        key = (self.tokenizer.fingerprint, *options, list(records))
        make = lambda: self.task.features(records, self.tokenizer, training=training)  # noqa: E731
        return TaskSplit(records, load_or_build(self._cache, key, make) if cache else make())

    def padded_lengths(self, splits: Sequence[TaskSplit], count: int) -> tuple[int, ...]:
        """Returns at most `count` padded lengths for the batches of these splits."""
        lengths = np.concatenate([split.features.lengths for split in splits])
        if any(split.is_stream for split in splits):  # assume that the lengths in a stream are log-uniform
            longest = max(self.settings.seq_len, getattr(self.task, 'query_len', 0))
            lengths = np.geomspace(4, longest, 64).astype(np.int64)
        return choose_lengths(lengths, count=count, max_length=self.encoder.max_positions)

    def best_length_count(self, splits: Sequence[TaskSplit], passes: float, *, training: bool) -> int:
        """Returns the number of padded lengths that minimizes the cost of computation and compilation.

        `passes` is the number of passes over the splits, of the training if `training` is True, else of the evaluation.
        """
        if any(split.is_stream for split in splits):
            return MAX_LENGTHS  # the first batch of a stream says little about its lengths
        encoder, choices = self.encoder, splits[0].features.choices
        share = passes * choices * (1 if training else 1 / 3)  # the backward pass has two thirds of the FLOPs
        count, _ = best_length_count(
            np.concatenate([split.features.lengths for split in splits]),
            lambda length: share * train_flops_per_sequence(encoder, length, 0),
            compile_cost=compile_cost(encoder, training=training),
            max_length=encoder.max_positions,
        )
        return count

    def fingerprints(self) -> dict[str, str]:
        """Returns fingerprints of the encoder, tokenizer, labels and training data. A resumed run must keep them."""
        encoder = self.encoder
        sizes = (encoder.num_layers, encoder.width, encoder.num_heads, encoder.mlp_dim, encoder.max_positions)
        rows = self.split('train', training=True).features
        facts = {'encoder': '/'.join(map(str, sizes)), 'tokenizer': self.tokenizer.fingerprint}
        return facts | {'labels': ', '.join(self.task.labels), 'data': rows.fingerprint}

    def eval_fingerprints(self) -> dict[str, str]:
        """Returns the fingerprints of the evaluation splits."""
        return {name: self.split(name).features.fingerprint for name in self.eval_splits}

    def task_json(self, *, finished: bool = True) -> str:
        """Returns the text of task.json. For `finished`, see `make_task_json`."""
        options, state = to_plain(self.settings.task), {'finished': finished, 'tuned': self.thresholds_tuned}
        return make_task_json(options, self.task, self.encoder, self.settings.seq_len, **state)


def compile_cost(encoder: BertConfig, *, training: bool) -> float:
    """Returns the cost of compiling one more padded length, in FLOPs."""
    once, block = COMPILE_TIME[training]
    return FLOPS * (once + block * encoder.num_layers)


def _adopted_state(settings: FinetuningSettings, task: Task, folder: pathlib.Path) -> Mapping[str, Any] | None:
    """Returns the learned state of a started run, with the settings that `Task.adopt` has set.

    The result is None for other runs and for tasks without `adopts`. Like the weights, this state does not change if
    the run is resumed with another config.init.
    """
    if not (task.adopts and has_checkpoints(folder)):
        return None
    kind = settings.task['kind']
    return read_json_or_none(
        folder / TASK_FILE, lambda facts: facts['learned'] if facts['task']['kind'] == kind else None
    )


def make_task_json(
    options: Mapping[str, Any],
    task: Task,
    encoder: BertConfig,
    seq_len: int,
    *,
    finished: bool = True,
    tuned: bool = True,
    from_head: bool = False,
) -> str:
    """Returns the text of task.json, which says if the training is not `finished` or its thresholds are not `tuned`.

    `from_head` tells that the kind of the task only follows from the head of another program's model.
    """
    facts: dict[str, Any] = {'task': dict(options), 'learned': task.learned_state()}
    facts |= {'encoder': dataclasses.asdict(encoder), 'seq_len': seq_len}
    facts |= {'from_head': True} if from_head else {}
    if not finished:
        facts['finished'] = False
    elif not tuned and not facts['learned'].keys().isdisjoint(task.thresholds):
        facts['tuned'] = False  # the run had no dev split, so the thresholds have their defaults
    return json.dumps(facts, indent=2, ensure_ascii=False) + '\n'


def sample_records(records: Sequence[Any], limit: int) -> Sequence[Any]:
    """Returns `limit` random records in their original order; all records if there are fewer, or if `limit` is 0.

    A smaller sample is a subset of a larger one. The sample does not depend on a seed, so that runs are compared on the
    same records.
    """
    if not 0 < limit < len(records):
        return records
    order = np.argsort(hash_bits(0, Stream.SAMPLE, np.arange(len(records))), kind='stable')
    return [records[i] for i in np.sort(order[:limit]).tolist()]


def read_encoder_config(settings: FinetuningSettings, source: str) -> BertConfig:
    """Reads the encoder config of a Hugging Face directory. The fields of config.model take precedence."""
    return read_config(source, **_model_choices(settings))


def _model_choices(settings: FinetuningSettings) -> dict[str, Any]:
    choices = dataclasses.asdict(settings.model)
    scan = choices['scan_layers'] and not any(map(needs_unrolled, settings.trained_parts))
    return {**choices, 'scan_layers': scan}


def load_task_tokenizer(settings: FinetuningSettings, directory: str, encoder: BertConfig) -> Tokenizer:
    """Loads the tokenizer in config.tokenizer or, if this is empty, in the directory of the model.

    Raises a UserError if the tokenizer in config.tokenizer has other pieces than the model's.
    """
    tokenizer = load_tokenizer(settings.tokenizer or directory)
    if settings.tokenizer:
        model_tokenizer = load_model_tokenizer(directory, tokenizer, encoder.vocab_size)
        if new := find_previous_ids(model_tokenizer, tokenizer):  # their embeddings are not trained
            found, expected = f'the new piece {tokenizer.pieces[min(new)]!r}', f'the vocabulary of {directory}'
            fix = 'pre-train with it first (configs/adapt.py), or leave config.tokenizer empty'
            raise UserError('config.tokenizer', found, expected, fix)
    return tokenizer


def data_from_source(settings: FinetuningSettings, folder: pathlib.Path) -> TaskData:
    """Returns the data of a run. The encoder config comes from config.init, and the labels from training records.

    If config.init is not on this machine, such as a model on the hub, a resumed run with the recorded config.init and
    config.tokenizer takes the encoder config and the tokenizer from its workdir.

    Raises a UserError if config.init does not exist, its encoder contradicts the settings, or records are malformed.
    """
    source, encoder = '', None
    recorded = read_json_or_none(folder / 'config.json', lambda facts: (facts['init'], facts['tokenizer']))
    resumes = has_checkpoints(folder) and recorded == (settings.init, settings.tokenizer) and (folder / FOLDER).exists()
    if resumes and not os.path.exists(os.path.expanduser(settings.init)):
        make_config = lambda facts: BertConfig(**{**facts['encoder'], **_model_choices(settings)})  # noqa: E731
        encoder = read_json_or_none(folder / TASK_FILE, make_config)
    if encoder:
        tokenizer = load_workdir_tokenizer(folder)
    else:
        source = huggingface_directory(settings.init)
        # The config is read before the tokenizer, because `read_config` reports an unsupported model family.
        encoder = read_encoder_config(settings, source)
        tokenizer = load_task_tokenizer(settings, source, encoder)
    data = TaskData(settings, folder, tokenizer, encoder, source)
    data.learn()
    return data
