"""The interface of a task, in two halves: `TrainableTask` for training and `ReportableTask` for reporting.

Methods that are the same for most kinds of task have a default implementation.
"""

import abc
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from bertjax.convert.heads import Head
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.tasks.reading import layout
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.text.tokenizer import Tokenizer

Record = TypeVar('Record')
Prediction = TypeVar('Prediction')

# {name of a model output: an array for each row of the features}; those in Head.per_token are cut to the row's length.
Outputs = Mapping[str, Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A labelled record with its prediction, for a person to read.

    Attributes:
      texts: the texts of the record, {name: text}.
      true, predicted: the label and the prediction as text.
      error: the size of the error: 0 for a correct prediction; it grows with the confidence in a wrong one.
      classes: a pair (true, predicted) for each decision between classes, with '' for a missing side; empty if the
        task has no classes.
    """

    texts: Mapping[str, str]
    true: str
    predicted: str
    error: float
    classes: Sequence[tuple[str, str]] = ()


class TrainableTask(abc.ABC, Generic[Record]):
    """The methods that training needs: from files to records, features and a model.

    Attributes:
      name: the name in titles, such as 'RTE'.
      head: the head of the model.
      objective: the training objective of that head.
      labels: the names of the head's outputs in order, as far as they are known; empty if the outputs have no names.
      complete: whether the size of the head is known; if not, `learn` or `restore` must be called first.
    """

    name: str
    head: Head
    objective: Objective
    labels: Sequence[str] = ()
    complete: bool = True

    @abc.abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the names of the labelled splits: 'train', 'dev', and 'test' if it has labels; MNLI also has
        'dev_mismatched'. All splits except 'train' are evaluated at the end."""

    @abc.abstractmethod
    def records(self, split: str) -> Sequence[Record]:
        """Reads a split ('train', 'dev', 'test' ...) in file order. The records of 'test' may lack labels.

        Raises:
          UserError: The file or split does not exist, or a row is malformed. No row is dropped silently.
        """

    @abc.abstractmethod
    def features(self, records: Sequence[Record], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Tokenises records. Without `training`, records need no labels, and every record has at least one row."""

    def fixed_tokens(self, records: Sequence[Record], features: Features, tokenizer: Tokenizer) -> np.ndarray:
        """Returns a mask, bool [T], of the tokens that augmentation must not replace, such as entity markers.

        Args:
          records: The records of the features.
          features: The features, with T tokens in all rows together.
          tokenizer: The tokenizer that made them.
        """
        return np.zeros(len(features.tokens), bool)

    @abc.abstractmethod
    def build_module(self, model_config: BertConfig) -> BertForTask:
        """Builds the encoder with the task's head, a `head.module`."""

    def sources(self) -> str:
        """Describes which files are which splits, for a person to read; '' if only official names are possible."""
        return ''

    def check_training(self, train: str) -> None:
        """Checks config.trainable, the part of the model that is trained, against the options of the task.

        Raises:
          UserError: The two contradict each other.
        """

    def learn(self, records: Sequence[Record]) -> None:
        """Collects the labels from the training records, because the head needs them, and prints their statistics."""

    def learned_state(self) -> dict[str, Any]:
        """Returns the results of `learn` and `tune` as a JSON object, which is saved beside the model."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `learned_state` of an earlier run."""

    def huggingface(self) -> dict[str, Any]:
        """Returns the fields of the task (`id2label` ...) for the config.json of an export."""
        return {}


class ReportableTask(abc.ABC, Generic[Record, Prediction]):
    """The methods that reporting needs: from the outputs of the model to predictions, metrics and files.

    Attributes:
      score: the name of the metric that selects the best run; higher is better.
      thresholds: the names of entries of `metrics` that are tuned thresholds and measure nothing.
      has_baselines: whether `baselines` returns any.
    """

    score: str
    thresholds: Collection[str] = ()
    has_baselines: bool = False

    @abc.abstractmethod
    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Record | Blank]:
        """Yields records without labels from the lines of a user's file or of standard input (named `where`).

        Each record is yielded as soon as its lines are read. A format with one record per line yields a `Blank` for a
        blank line.

        Raises:
          UserError: See `records`.
        """

    def from_rows(self, rows: Iterator[layout.Record]) -> Iterator[Record | Blank]:
        """Yields records without labels from the rows of a user's binary file (Parquet, Arrow).

        Raises:
          UserError: See `records`; or this kind of task takes text only.
        """
        raise UserError(next(rows).where, 'a row of fields', 'the text that this task takes', 'see docs/finetuning.md')

    @abc.abstractmethod
    def predictions(self, records: Sequence[Record], features: Features, outputs: Outputs) -> list[Prediction]:
        """Returns one prediction for each record, from the outputs of all rows of its features."""

    def ensemble_predictions(
        self, records: Sequence[Record], members: Sequence[tuple[Features, Outputs]]
    ) -> list[Prediction]:
        """Returns the predictions of an ensemble, from the mean of the logits of its models.

        Args:
          records: The records of a split.
          members: The features and the outputs of these records, a pair for each model.

        Raises:
          UserError: The logits of the models are not comparable, for example because their tokenizers differ.
        """
        first = members[0][0]
        if any(features.fingerprint != first.fingerprint for features, _ in members):
            raise UserError(
                'config.ensemble',
                found='models that split the texts into different pieces or windows',
                expected=f'one tokenizer, config.seq_len and stride, because {self.name} has an answer for each piece',
                fix='leave out the models that differ',
            )
        return self.predictions(records, first, average_outputs([outputs for _, outputs in members]))

    @abc.abstractmethod
    def metrics(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> dict[str, float | None]:
        """Returns all metrics of labelled records, {name: value}; None for an undefined value."""

    @abc.abstractmethod
    def collapsed(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> bool:
        """Whether the model has collapsed: it gives the same answer for every record."""

    @abc.abstractmethod
    def rows(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        """Yields one JSON object for each record: labels and probabilities, spans, or tags."""

    def judgments(self, records: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """Yields a judgment for each labelled record.

        Args:
          records: The labelled records.
          rows: The objects that `rows` yielded for their predictions.

        Yields:
          A judgment for each record; nothing if the task has no such view.
        """
        return iter(())

    def tune(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> None:
        """Tunes thresholds on dev, such as the null threshold of SQuAD 2.0."""

    def report(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> str:
        """Returns text for a person to read beside the metrics, such as a confusion table; '' if there is none."""
        return ''

    def baselines(self, train: Sequence[Record], records: Sequence[Record]) -> dict[str, list[Prediction]]:
        """Returns {name: predictions for `records`} of simple baselines, which a model should beat.

        They are fitted to the records `train`. A task without baselines returns {}.

        Raises:
          UserError: scikit-learn is not installed.
        """
        return {}

    def official_files(
        self, split: str, records: Sequence[Record], predictions: Sequence[Prediction]
    ) -> dict[str, str]:
        """Returns {file name: text} in the format of the benchmark's server or script; {} if it has none."""
        return {}


class Task(TrainableTask[Record], ReportableTask[Record, Prediction]):
    """A kind of task.

    A subclass is a dataclass with the fields `data`, the folder of its files ('' for tensorflow-datasets), `seq_len`,
    the maximum sequence length in tokens, and its options (see options.py), which are the fields of config.task.
    """


def average_outputs(members: Sequence[Outputs]) -> Outputs:
    """Returns the mean, in float64, of the outputs of several models for the same rows."""
    return {
        name: [
            np.mean(rows, axis=0, dtype=np.float64)
            for rows in zip(*(outputs[name] for outputs in members), strict=True)
        ]
        for name in members[0]
    }


def id2label(labels: Sequence[str]) -> dict[str, Any]:
    """Returns the fields `id2label` and `label2id` of config.json."""
    names = {str(i): label for i, label in enumerate(labels)}
    return {'id2label': names, 'label2id': {label: i for i, label in enumerate(labels)}}
