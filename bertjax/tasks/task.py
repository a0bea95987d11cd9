"""The base class of all tasks, and the declaration of their options."""

import abc
import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from bertjax.config import schema
from bertjax.config.ranges import Range, integer
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, module_files
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.tasks.reading import layout
from bertjax.tasks.reading.splits import SplitFiles
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.text.tokenizer import Tokenizer

# Each option affects one part of a run, and this part determines when the value of the option can change:
# 'model': the parameters, or the choice of the best ones. The value cannot change after the start of the run.
# 'training': the training data or the loss. The value can change when an unfinished run is resumed, and the change is
#   reported. It cannot change when the finished model is used.
# 'reading': how records are read, or how answers are selected. The value can change when the finished model is used.
_POLICIES = {
    'model': {'change': schema.Change.STATE, 'trained': schema.Trained.SAME},
    'training': {'change': schema.Change.TRAINING, 'trained': schema.Trained.SAME},
    'reading': {'change': schema.Change.RUN, 'trained': schema.Trained.COMMAND_LINE},
}
BILSTM_UNITS = integer(0, 65_536)  # the allowed numbers of BiLSTM units per direction; 0 for no BiLSTM


def option(
    default: Any,
    allowed: Range | None = None,
    about: str = '',
    *,
    affects: Literal['model', 'training', 'reading'] = 'training',
    named: bool = False,
) -> Any:
    """Declares a field of a task class as an option, which is a key of config.task.

    A field with a plain default is also an option, and affects 'training'.

    Args:
      default: the value if a recipe does not set the option.
      allowed: the range of values; None allows True and False if `default` is a bool, and any text if it is a string.
      about: one line of documentation; '' to use the field's entry in the docstring of the class.
      affects: a key of _POLICIES.
      named: whether a recipe argument without a name sets the option, as in configs/glue.py:rte.
    """
    return schema.key(default, allowed, about, named=named, **_POLICIES[affects])


def options_of(task: type) -> dict[str, schema.Key]:
    """Returns the options of a task class by name: all fields except `data` and `seq_len`, which have no default."""
    return schema.keys_of(task, **_POLICIES['training'])


Record = TypeVar('Record')
Prediction = TypeVar('Prediction')

# {name of a model output: one array for each row of the features}. Outputs in Head.per_token have an entry per token.
Outputs = Mapping[str, Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A labeled record and its prediction in readable form, for the error report.

    Attributes:
      texts: the texts of the record, {name: text}.
      true, predicted: the label and the prediction as text.
      error: the size of the error, 0 for a correct prediction. The report sorts wrong predictions by size.
      classes: (true class, predicted class) for each decision; '' stands for no class. Empty if the task has no
        classes.
    """

    texts: Mapping[str, str]
    true: str
    predicted: str
    error: float
    classes: Sequence[tuple[str, str]] = ()


def check_all_or_none(records: Sequence[Any]) -> None:
    """Raises a UserError if only some of the records of a split have a label. A record has `where` and `label`."""
    unlabeled = [record.where for record in records if record.label is None]
    if unlabeled and len(unlabeled) < len(records):
        fix = 'correct the record, or remove all labels of the file'
        raise UserError(unlabeled[0], 'no label', 'a label, as for other records', fix)


def check_same_label(row: Mapping[str, Any], label: Any, where: str) -> None:
    """Raises a ValueError if the true label in a row of predictions is not `label`: the data have changed since."""
    if row.get('true', label) != label:
        raise ValueError(f'another label at {where}')


class Task(abc.ABC, Generic[Record, Prediction]):
    """The base class of tasks. A task reads records, builds features and a model, and reports on the predictions.

    A subclass is a dataclass. The field `data` is the folder or the file with the data, or '' for tensorflow-datasets.
    The field `seq_len` is the maximum sequence length in tokens. All other fields are options, see `option`.

    Attributes:
      name: the name in titles, such as 'RTE'; by default, the name of the folder or file `data`.
      default_name: the name of a task without `data`.
      method: the method of `api.Bert` that uses a model for the task; '' if there is none.
      results: a description of the results of `method`, for messages; by default, `name`.
      head: the head of the model.
      objective: the training objective of the head.
      labels: the names of the head's outputs, in order; empty if they are unknown or the outputs have no names.
      complete: whether the size of the head is known. If not, call `learn` or `restore` before `build_module`.
      score: the name of the metric that selects the best run and the best checkpoint; higher is better.
      thresholds: the names of the entries of `metrics` that are thresholds, not measurements.
      same_rows: whether the features have the same rows for any tokenizer and sequence length.
      partial_files: whether `official_files` may leave out records without text.
      needs_neighbors: whether the rows of a record also contain neighboring records, which a sample would lack.
      has_baselines: whether the task implements `baselines`.
      adopts: whether `adopt` changes `learned_state`.
      learned: the attributes to save with the model, {key of `learned` in task.json: name of the attribute}.
      min_seq_len: the smallest value of `seq_len`.
    """

    name: str = ''
    default_name: str = ''
    method: str = ''
    results: str = ''
    head: Head
    objective: Objective
    labels: Sequence[str] = ()
    complete: bool = True
    score: str
    thresholds: Collection[str] = ()
    same_rows: bool = False
    partial_files: bool = False
    needs_neighbors: bool = False
    has_baselines: bool = False
    adopts: bool = False
    learned: Mapping[str, str] = {}
    min_seq_len: int = 1
    _files: SplitFiles | None = None

    def __post_init__(self):
        schema.check_fields(self, 'task')
        self.name = self.name or pathlib.PurePath(self.data).name or self.default_name
        self.results = self.results or self.name
        if self.seq_len < self.min_seq_len:
            raise UserError('config.seq_len', str(self.seq_len), f'at least {self.min_seq_len}', 'use 128')

    def splits(self) -> Sequence[str]:
        """Returns the names of the labeled splits. At the end of a run, all of them except 'train' are evaluated.

        The usual names are 'train', 'dev' and 'test'. MNLI also has 'dev_mismatched'. A subclass without `_files`
        overrides this method.
        """
        return self._files.splits()

    @abc.abstractmethod
    def records(self, split: str) -> Sequence[Record]:
        """Reads the records of a split in file order, and prints a message if rows are dropped.

        The records of 'test' may lack labels.

        Raises:
          UserError: The file or split does not exist, or a row is malformed.
        """

    def _has_labels(self) -> bool:
        """Reads the test split, whose records have a `label`, and returns whether it has labels."""
        return self.records('test')[0].label is not None

    @abc.abstractmethod
    def features(self, records: Sequence[Record], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Tokenizes records. Without `training`, records need no labels, and no record is skipped."""

    def fixed_tokens(self, records: Sequence[Record], features: Features, tokenizer: Tokenizer) -> np.ndarray:
        """Returns bool [T] for the T tokens of all rows: True for the tokens that augmentation must not replace."""
        return np.zeros(len(features.tokens), bool)

    @abc.abstractmethod
    def build_module(self, model_config: BertConfig) -> BertForTask:
        """Builds the encoder with the task head, an instance of `head.module`."""

    def sources(self) -> str:
        """Returns a readable list of the splits and their files, or '' if there is nothing to list."""
        return self._files.describe() if self._files else ''

    def check_training(self, train: str) -> None:
        """Raises a UserError if an option of the task contradicts `train`, the value of config.trainable."""

    def check_encoder(self, model_config: BertConfig) -> None:
        """Raises a UserError if the encoder does not suit the training records, which `learn` has seen."""

    def adopt(self, source: str) -> None:
        """Adopts settings of the model in the directory `source`. A new run starts from this model.

        Raises:
          UserError: The task cannot represent the model.
        """

    def learn(self, records: Sequence[Record]) -> None:
        """Collects the labels of the training records, which determine the size of the head, and prints statistics."""

    def learned_state(self) -> dict[str, Any]:
        """Returns the results of `learn` and `tune` as a JSON object to save with the model."""
        return {key: getattr(self, name) for key, name in self.learned.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the results of `learn` and `tune` from `state`, a saved `learned_state`."""
        for key, name in self.learned.items():
            setattr(self, name, state[key])

    def huggingface(self) -> dict[str, Any]:
        """Returns the task's fields of config.json, such as `id2label`, for an export to transformers."""
        return id2label(self.labels) if self.labels else {}

    def sentence_modules(self) -> SentenceModules | None:
        """Returns the modules that map a text to its vector, or None if the task does not train vectors of texts."""
        return None

    @property
    def truncated_length(self) -> int:
        """The number of tokens that are kept of a longer text; 0 if the task reads long texts in another way."""
        modules = self.sentence_modules()
        return modules.max_length if modules else self.seq_len if self.head.pools_cls else 0

    def model_files(self, model_config: BertConfig) -> Mapping[str, bytes]:
        """Returns the files that sentence-transformers needs in an export to transformers: {relative path: content}."""
        modules = self.sentence_modules()
        return module_files(modules, model_config.width, model_config.num_layers) if modules else {}

    def card_facts(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns facts about the inputs of the model for the model card of an export, see `model_card`."""
        return {}

    @abc.abstractmethod
    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Record | Blank]:
        """Yields unlabeled records from the lines of an input file, each as soon as its lines are read.

        Yields a `Blank` for each blank line or empty record that needs a row in the output.
        """

    def from_rows(self, rows: Iterator[layout.Record]) -> Iterator[Record | Blank]:
        """Yields unlabeled records from the rows of a Parquet or Arrow file; by default, raises a UserError."""
        raise UserError(next(rows).where, 'a row of fields', 'a text file', 'see docs/finetuning.md')

    @abc.abstractmethod
    def predictions(self, records: Sequence[Record], features: Features, outputs: Outputs) -> Sequence[Prediction]:
        """Returns the prediction for each record, computed from the outputs for all of its rows."""

    def ensemble_predictions(
        self, records: Sequence[Record], members: Sequence[tuple[Features, Outputs]]
    ) -> Sequence[Prediction]:
        """Returns the predictions of an ensemble, computed from the mean logits of its models.

        `members` has the features and the outputs of each model.

        Raises:
          UserError: The models' logits are not comparable, for example because their tokenizers differ.
        """
        features = members[0][0] if self.same_rows else self._shared_features(members)
        mean = {}
        for name in members[0][1]:
            by_row = zip(*(outputs[name] for _, outputs in members), strict=True)
            mean[name] = [np.mean(rows, axis=0, dtype=np.float64) for rows in by_row]
        return self.predictions(records, features, mean)

    def _shared_features(self, members: Sequence[tuple[Features, Outputs]]) -> Features:
        """Returns the features of the first model. Raises a UserError if the features of the models differ."""
        first = members[0][0]
        if any(features.fingerprint != first.fingerprint for features, _ in members):
            found = 'models that split the texts into different pieces or windows'
            expected = f'one tokenizer, config.seq_len and stride, because {self.name} has logits for each piece'
            raise UserError('config.ensemble', found, expected, 'leave out the models that differ')
        return first

    @abc.abstractmethod
    def metrics(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> dict[str, float | None]:
        """Returns all metrics on labeled records, {name: value}. The value of an undefined metric is None."""

    def has_score(self, records: Sequence[Record]) -> bool:
        """Whether the score is defined on labeled records, for predictions that are not all equal."""
        return True

    @abc.abstractmethod
    def collapsed(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> bool:
        """Whether the model has collapsed: its predictions for all records are equal or nearly equal."""

    @abc.abstractmethod
    def rows(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        """Yields the prediction for each record as a JSON object."""

    def judgments(self, records: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """Yields a judgment for each labeled record and its object in `rows`; by default, yields nothing."""
        return iter(())

    def tune(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> None:
        """Tunes thresholds, such as the null threshold of SQuAD 2.0, on the dev split."""

    def report(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> str:
        """Returns a text that complements the metrics, such as a confusion table, or ''."""
        return ''

    def baselines(self, train: Sequence[Record], records: Sequence[Record]) -> dict[str, Sequence[Prediction]]:
        """Fits simple baselines to `train`, and returns {name of a baseline: predictions for `records`}.

        Raises:
          UserError: scikit-learn is not installed.
        """
        return {}

    def official_files(
        self, split: str, records: Sequence[Record], predictions: Sequence[Prediction]
    ) -> dict[str, str]:
        """Returns {file name: text} in the format of a benchmark's server or script; {} if there is no benchmark."""
        return {}


def id2label(labels: Sequence[str]) -> dict[str, Any]:
    """Returns the fields `id2label` and `label2id` of config.json for the names of the labels."""
    names = {str(i): label for i, label in enumerate(labels)}
    return {'id2label': names, 'label2id': {label: i for i, label in enumerate(labels)}}
