"""What every task is, in two halves: what training needs of it, and what reporting needs of it.

Methods that most kinds of task share have their usual implementation here.
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
from bertjax.model.heads import TaskModel
from bertjax.tasks.reading import layout
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.text.tokenizer import Tokenizer

Record = TypeVar('Record')
Prediction = TypeVar('Prediction')

# {name of a model output: an array for each row of the features}; those of Head.per_token are cut to the row's length.
Outputs = Mapping[str, Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A labelled record beside its prediction, for a person to read.

    Attributes:
      texts: the record, {what it is: text}.
      true, predicted: the two answers.
      wrong: how much is wrong: 0 for nothing, and the more the surer a wrong answer was.
      classes: (true, predicted) of each decision between classes, '' where there is none of the one or the other; no
        pair where a task has no classes.
    """

    texts: Mapping[str, str]
    true: str
    predicted: str
    wrong: float
    classes: Sequence[tuple[str, str]] = ()


class TrainableTask(abc.ABC, Generic[Record]):
    """From files to records, features and a model: all that training needs.

    Attributes:
      name: for titles, such as 'RTE'.
      head: of the model.
      objective: the training objective of that head.
      labels: names of the head's outputs in order, as far as they are known; none where outputs have no names.
      complete: whether the head's size is known; if not, `learn` or `restore` must come first.
    """

    name: str
    head: Head
    objective: Objective
    labels: Sequence[str] = ()
    complete: bool = True

    @abc.abstractmethod
    def splits(self) -> Sequence[str]:
        """The labelled splits that `records` has: 'train', 'dev', and 'test' where it has labels; MNLI also has
        'dev_mismatched'. All but 'train' are evaluated at the end."""

    @abc.abstractmethod
    def records(self, split: str) -> Sequence[Record]:
        """Reads a split ('train', 'dev', 'test' ...) in file order. `test` may lack labels.

        Raises:
          UserError: no such file or split, or a malformed row: file, line, what was expected. No row is dropped.
        """

    @abc.abstractmethod
    def features(self, records: Sequence[Record], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Tokenises. Without `training`, records need no labels, and every record has at least one row."""

    def fixed_tokens(self, records: Sequence[Record], features: Features, tokenizer: Tokenizer) -> np.ndarray:
        """bool [T]: the tokens of the `features` of these records that mark something, and that a row which is made up
        of another keeps as they are."""
        return np.zeros(len(features.tokens), bool)

    @abc.abstractmethod
    def model(self, config: BertConfig) -> TaskModel:
        """The encoder with the task's head: a `head.module`."""

    def sources(self) -> str:
        """Which files became which splits, for a person to read; '' where only official names are possible."""
        return ''

    def check_training(self, train: str) -> None:
        """Checks config.train, what is trained of the model, against the task's options.

        Raises:
          UserError: the two contradict each other.
        """

    def learn(self, records: Sequence[Record]) -> None:
        """Collects from the training records what the head needs, the labels; prints what a person should know."""

    def learned(self) -> dict[str, Any]:
        """What `learn` and `tune` found, as JSON; it is kept beside the model."""
        return {}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Sets what an earlier run has `learned`."""

    def huggingface(self) -> dict[str, Any]:
        """Fields of the task for the config.json of an export (`id2label` ...)."""
        return {}


class ReportableTask(abc.ABC, Generic[Record, Prediction]):
    """From the model's outputs to predictions, figures and files: all that reporting needs.

    Attributes:
      score: the figure of `metrics` by which the best run is chosen; higher is better.
      thresholds: those of `metrics` that measure nothing.
      has_baselines: whether `baselines` gives any.
    """

    score: str
    thresholds: Collection[str] = ()
    has_baselines: bool = False

    @abc.abstractmethod
    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Record | Blank]:
        """Records without labels, from the lines of a user's own file or of standard input (named `where`), each as
        soon as its lines are there. A format that has a record a line keeps the place of a blank one.

        Raises:
          UserError: see `records`.
        """

    def from_rows(self, rows: Iterator[layout.Record]) -> Iterator[Record | Blank]:
        """Records without labels, from the rows of a user's own file that is no text (Parquet, Arrow).

        Raises:
          UserError: see `records`; this kind of task has no rows.
        """
        where = next(rows).where
        raise UserError(where, 'a row of fields', 'the text that this task takes', 'see docs/finetuning.md')

    @abc.abstractmethod
    def predictions(self, records: Sequence[Record], features: Features, outputs: Outputs) -> list[Prediction]:
        """One prediction for each record, from the outputs of all rows of its features."""

    def merged(self, records: Sequence[Record], members: Sequence[tuple[Features, Outputs]]) -> list[Prediction]:
        """The predictions of several models together, of the mean of their logits.

        Args:
          records: of a split.
          members: of each model its features of these records, and its outputs for them.

        Raises:
          UserError: models whose logits do not stand for the same things, as pieces of another tokenizer do not.
        """
        first = members[0][0]
        if any(features.fingerprint != first.fingerprint for features, _ in members):
            found = 'models that see the texts in other pieces or windows'
            expected = f'one tokenizer, config.seq_len and stride, for {self.name} has an answer a piece'
            raise UserError('config.ensemble', found, expected, 'leave those out that differ')
        return self.predictions(records, first, mean_outputs([outputs for _, outputs in members]))

    @abc.abstractmethod
    def metrics(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> dict[str, float | None]:
        """All figures of labelled records; None where one is undefined."""

    @abc.abstractmethod
    def collapsed(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> bool:
        """Whether a run has learned nothing: it gives the same answer for every record."""

    @abc.abstractmethod
    def rows(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
        """One JSON object for each record: labels and probabilities, spans, or tags."""

    def reviewed(self, records: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """Labelled records beside the `rows` that were written of their predictions; none where a task knows no such
        view."""
        return iter(())

    def tune(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> None:
        """Sets what is tuned on dev, such as the null threshold of SQuAD 2.0."""

    def report(self, records: Sequence[Record], predictions: Sequence[Prediction]) -> str:
        """What a person reads beside the figures, such as a confusion table; '' for nothing."""
        return ''

    def baselines(self, train: Sequence[Record], records: Sequence[Record]) -> dict[str, list[Prediction]]:
        """{name: the predictions for labelled records} of simple answers that learn from the training records: what a
        model should beat; {} where none is usual.

        Raises:
          UserError: scikit-learn is not installed.
        """
        return {}

    def official_files(
        self, split: str, records: Sequence[Record], predictions: Sequence[Prediction]
    ) -> dict[str, str]:
        """{file name: text} as the benchmark's server or script takes them; {} where there is none."""
        return {}


class Task(TrainableTask[Record], ReportableTask[Record, Prediction]):
    """A kind of task: a dataclass of `data`, the folder of its files ('' for tensorflow-datasets), `seq_len`, the
    longest sequence in tokens, and its options (see options.py), the fields of config.task."""


def mean_outputs(members: Sequence[Outputs]) -> Outputs:
    """The mean of the outputs of several models with the same rows, in float64."""
    return {
        name: [np.mean(rows, axis=0, dtype=np.float64) for rows in zip(*(one[name] for one in members), strict=True)]
        for name in members[0]
    }


def id2label(labels: Sequence[str]) -> dict[str, Any]:
    """The names of the outputs as in config.json: `id2label` and `label2id`."""
    names = {str(i): label for i, label in enumerate(labels)}
    return {'id2label': names, 'label2id': {label: i for i, label in enumerate(labels)}}
