"""The base class of tasks that assign a label, several labels or a score to a text or a pair of texts."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.config.ranges import MANY, integer, one_of
from bertjax.convert.heads import SEQUENCE_CLASSIFICATION
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION, REGRESSION, Objective
from bertjax.metrics.classification import CLASS_METRICS, VALUE_METRICS, confusion
from bertjax.metrics.softmax import softmax
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.tasks.baselines import class_baselines, score_baselines
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.records import Row, select_columns
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.sentence.features import LONG, average_rows, text_features
from bertjax.tasks.sentence.input import read_input
from bertjax.tasks.sentence.labels import LabeledRecord, find_labels
from bertjax.tasks.sentence.report import class_report, describe_labels, describe_values
from bertjax.tasks.task import BILSTM_UNITS, Judgment, Outputs, Task, check_same_label, id2label, option
from bertjax.text.tokenizer import Tokenizer

Logits = Sequence[np.ndarray]  # the predictions for several records, see TextTask
_MAX_SCORE = 1e15  # with larger scores, the sum of squared errors of a batch could overflow float32


@dataclasses.dataclass(frozen=True)
class Example:
    """A text or a pair of texts with its label.

    Attributes:
      first: the text, or the first text of a pair.
      second: the second text of a pair; None if the task has no pairs.
      label: the name of the label, or the score, or the names of several labels; None if unknown.
      index: the identifier of the record in a file of GLUE, or its position, from 0, if the file has no identifiers;
        '' in other tasks.
      where: the location, such as 'file:line'; not compared, so that equal records from different files are equal.
      fields: all fields of the row; None for plain text, for a row of train, and for a row of a split of GLUE.
    """

    first: str
    second: str | None
    label: str | float | tuple[str, ...] | None
    index: str = ''
    where: str = dataclasses.field(default='', repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)


def name_texts(record: LabeledRecord) -> dict[str, str]:
    """Returns the texts of a record by name, for the error report."""
    return {'text': record.first} if record.second is None else {'first': record.first, 'second': record.second}


@dataclasses.dataclass
class TextTask(Task[Example, np.ndarray]):
    """The base class of text tasks. Its methods do not depend on the source of the records.

    The prediction for a record is float64 [C], the logits of the labels, or float64 [1], the score.

    A subclass defines `name`; `regression`, whether the label is a score; `text_columns`, one or two columns; `labels`,
    which is empty until the labels are known; and `measures`, the names of its metrics. The first metric is the
    `score`.

    Attributes:
      data: the folder of the files; '' for tensorflow-datasets.
      seq_len: the maximum sequence length S in tokens, including [CLS] and [SEP].
      long: the method for longer records: 'truncate', 'head_tail' or 'windows'.
      stride: the distance between the starts of two windows of a long text, in tokens; 0 for half a window.
      bilstm_units: the number of units in each direction of a two-layer BiLSTM before the pooler (table 5 of the
        BERT paper adds a BiLSTM to its left-to-right ablation); 0 for no BiLSTM.
    """

    data: str
    seq_len: int
    long: str = option('truncate', one_of(LONG))
    stride: int = option(0, integer(0, MANY))
    bilstm_units: int = option(0, BILSTM_UNITS, affects='model')

    method, results = 'classify', 'labels of texts'
    head = SEQUENCE_CLASSIFICATION
    has_baselines = True
    columns = ()  # the names of all columns of a table without a header; () if tables must have a header
    format = 'auto'  # the format of text files whose suffix is unknown
    keep_tabs = False  # whether a plain line with tabs is a single text
    trained_texts = 0  # the number of texts in each training record; 0 if unknown, as for a model of transformers
    learned: ClassVar[Mapping[str, str]] = {'labels': 'labels'}
    min_seq_len = 5

    def __post_init__(self):
        super().__post_init__()
        if self.stride and (self.long != 'windows' or self.stride >= self.seq_len):
            found = f'{self.stride} with long={self.long!r} and seq_len={self.seq_len}'
            expected = "long='windows' and a stride below seq_len"
            raise UserError('config.task.stride', found, expected, 'leave it at 0 for half a window')
        self.labels = list(self.labels)
        if self.labels and (self.regression or len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            expected = 'nothing, because scores have no labels' if self.regression else 'two or more, all different'
            fix = 'leave it empty' if self.regression else 'leave it empty to collect the labels from the data'
            raise UserError('config.task.labels', repr(tuple(self.labels)), expected, fix)

    @property
    def score(self) -> str:
        return self.measures[0]

    @property
    def complete(self) -> bool:
        return self.regression or bool(self.labels)

    @property
    def truncated_length(self) -> int:
        return super().truncated_length if self.long == 'truncate' else 0

    @property
    def objective(self) -> Objective:
        return REGRESSION if self.regression else CLASSIFICATION

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Example | Blank]:
        options = {'headerless_columns': self.columns, 'format': self.format, 'keep_tabs': self.keep_tabs}
        yield from self._examples(read_input(lines, where, self.text_columns, **options))

    def from_rows(self, rows: Iterator[Record]) -> Iterator[Example | Blank]:
        return self._examples(select_columns(rows, self.text_columns))

    def _examples(self, rows: Iterable[Row | Blank]) -> Iterator[Example | Blank]:
        needs_text = all(column.required for column in self.text_columns)  # a relation may have tokens instead
        for row in rows:
            if needs_text and isinstance(row, Row):
                texts = tuple(text or '' for text in row.values)  # one text of a pair may be null
                has_text = any(map(str.strip, texts))
                row = Row(row.where, texts, row.fields) if has_text else Blank(row.where, 'an empty text', row.fields)
            yield row if isinstance(row, Blank) else self.example(row)

    def example(self, row: Row, label: str | None = None, index: str = '') -> Example:
        """Builds a record from a row of one or two texts. `label` is the text of the label; None if it is unknown.

        Raises:
          UserError: A text is missing, the label is empty or not among the known labels, or the score is not a
            finite number within ±1e15.
        """
        if None in row.values:
            raise UserError(row.where, 'no text', 'a string', 'correct or remove the record')
        first, second = (*row.values, None)[:2]
        known = None if label is None else self._label(label.strip(), row.where)
        return Example(first, second, known, index, row.where, row.fields)

    def _label(self, label: str, where: str) -> str | float | tuple[str, ...]:
        if not label:
            raise UserError(where, 'an empty label', 'a number' if self.regression else 'a label', 'correct the record')
        if not self.regression:
            self._check_known(label, where)
            return label
        fix = 'correct the record, or divide all scores by a constant'
        try:
            value = float(label)
        except ValueError:
            value, fix = math.nan, 'correct the record; write decimals with a point, such as 3.5'
        if not abs(value) <= _MAX_SCORE:  # also true for nan
            raise UserError(where, f'the score {label[:40]!r}', f'a finite number within ±{_MAX_SCORE:g}', fix)
        return value

    def _check_known(self, label: str, where: str) -> None:
        if self.labels and label not in self.labels:
            known = ', '.join(self.labels[:30])
            raise UserError(where, f'the label {label!r}', f'one of {known}', 'correct the record or the labels')

    def learn(self, records: Sequence[Example]) -> None:
        """Collects the labels, unless they are already known. Prints a report on the labels or scores."""
        self.trained_texts = len(self.text_columns)
        if self.regression:
            print(describe_values(records))
            return
        self.labels = self.labels or find_labels(records)
        print(describe_labels(self.labels, records))

    def learned_state(self) -> dict[str, Any]:
        return super().learned_state() | ({'texts': self.trained_texts} if self.trained_texts else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.trained_texts = state.get('texts', 0)

    def features(self, records: Sequence[Example], tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task; the rows have `labels` if every record has a label."""
        first = [record.first for record in records]
        second = None if records[0].second is None else [record.second for record in records]
        options = {'seq_len': self.seq_len, 'long': self.long, 'stride': self.stride}
        return text_features(first, second, self._known_targets(records), tokenizer, **options)

    def _known_targets(self, records: Sequence[Example]) -> np.ndarray | None:
        """Returns the `_targets` of the records, or None if a record has no label."""
        return self._targets(records) if all(record.label is not None for record in records) else None

    def _targets(self, records: Sequence[Example]) -> np.ndarray:
        """Returns the indices of the labels, int32 [N], or the scores, float32 [N]."""
        if self.regression:
            return np.array([record.label for record in records], np.float32)
        number = {label: i for i, label in enumerate(self.labels)}
        for record in records:
            self._check_known(record.label, record.where)
        return np.array([number[record.label] for record in records], np.int32)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        outputs = 1 if self.regression else len(self.labels)
        return self.head.module(model_config, outputs, bilstm_units=self.bilstm_units)

    def predictions(self, records: Sequence[Example], features: Features, outputs: Outputs) -> Logits:
        return average_rows(features, outputs['logits'], len(records))

    def ensemble_predictions(self, records: Sequence[Example], members: Sequence[tuple[Features, Outputs]]) -> Logits:
        """See Task; the models may differ in their tokenizer, sequence length and windows."""
        return np.mean([self.predictions(records, *member) for member in members], axis=0)

    def metrics(self, records: Sequence[Example], predictions: Logits) -> dict[str, float | None]:
        """Returns the metrics in `measures`.

        `mse` has no upper bound, correlations are in [-1, 1], and the other metrics are in [0, 1].
        """
        if self.regression:
            true, (predicted,) = [record.label for record in records], np.transpose(predictions)
            return {name: VALUE_METRICS[name](true, predicted) for name in self.measures}
        table = self._confusion(records, predictions)
        return {name: CLASS_METRICS[name](table) for name in self.measures}

    def has_score(self, records: Sequence[Example]) -> bool:
        """See Task; a correlation needs two or more different scores."""
        return not self.regression or len({record.label for record in records}) > 1

    def _confusion(self, records: Sequence[Example], predictions: Logits) -> np.ndarray:
        return confusion(self._targets(records), np.argmax(predictions, axis=-1), len(self.labels))

    def collapsed(self, records: Sequence[Example], predictions: Logits) -> bool:
        """Whether all predicted labels are equal, or all predicted scores nearly equal, unlike the true values.

        Scores are nearly equal if their standard deviation is at most 1 % of the standard deviation of the true scores.
        """
        true = [record.label for record in records]
        if not self.regression:
            return len(np.unique(np.argmax(predictions, axis=-1))) == 1 < len(set(true))
        return len(set(true)) > 1 and float(np.std(predictions)) <= 0.01 * float(np.std(true))

    def report(self, records: Sequence[Example], predictions: Logits) -> str:
        """Returns the report on the predicted labels, see report.py:class_report; '' in a regression."""
        return '' if self.regression else class_report(self._confusion(records, predictions), self.labels)

    def rows(self, records: Sequence[Example], predictions: Logits) -> Iterator[dict[str, Any]]:
        """Yields {label, probabilities: {label: probability}} for each record, or {score} in a regression.

        The object of a labeled record also has its label as `true`.
        """
        for record, logits in zip(records, predictions, strict=True):
            if self.regression:
                row: dict[str, Any] = {'score': float(logits[0])}
            else:
                probabilities = dict(zip(self.labels, softmax(logits).tolist(), strict=True))
                row = {'label': self.labels[logits.argmax()], 'probabilities': probabilities}
            yield row if record.label is None else {**row, 'true': record.label}

    def judgments(self, records: Sequence[Example], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        for record, row in zip(records, rows, strict=True):
            check_same_label(row, record.label, record.where)
            if self.regression:
                error = abs(record.label - row['score'])
                yield Judgment(name_texts(record), f'{record.label:g}', f'{row["score"]:.2f}', error)
                continue
            true, predicted, probabilities = record.label, row['label'], row['probabilities']
            # The term 1 keeps the error of a wrong label positive even if both labels have the same probability.
            error = 1 + probabilities[predicted] - probabilities[true] if true != predicted else 0.0
            answer = f'{predicted} ({probabilities[predicted]:.2f})'
            yield Judgment(name_texts(record), true, answer, error, [(true, predicted)])

    def baselines(self, train: Sequence[Example], records: Sequence[Example]) -> dict[str, Logits]:
        if self.regression:
            return score_baselines(train, self._targets(train), records)
        return class_baselines(train, self._targets(train), records, len(self.labels))

    def huggingface(self) -> dict[str, Any]:
        kind = 'regression' if self.regression else 'single_label_classification'
        return {**id2label(self.labels or ['LABEL_0']), 'problem_type': kind}
