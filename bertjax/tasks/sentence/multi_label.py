"""Multi-label classification of texts or text pairs from any table with named columns."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.config.ranges import list_of, number, text
from bertjax.errors import UserError
from bertjax.losses import MULTI_LABEL, Objective, build_label_weighted
from bertjax.metrics.classification import MULTI_LABEL_METRICS, label_scores, multi_label_figures
from bertjax.tasks.baselines import label_baselines
from bertjax.tasks.reading.layout import Column
from bertjax.tasks.reading.records import Row
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.report import label_report
from bertjax.tasks.sentence.task import Example, Logits, name_texts
from bertjax.tasks.task import Judgment, check_same_label, option

_SEPARATORS = '|;,'
_FLAGS = {'1': True, '1.0': True, 'true': True, '0': False, '0.0': False, 'false': False, '': False}


@dataclasses.dataclass
class MultiLabelTask(ClassificationTask):
    """Assigns any number of labels to a text or a pair. Each label is predicted independently, by a sigmoid.

    The labels of a record are a list of strings in JSON, or a cell such as `a|b`, which may be empty. Alternatively,
    each label has a column of 0 and 1.

    The options of ClassificationTask except `regression` also exist here. A weight in `class_weights` applies
    to the records that have the label, like `pos_weight` in PyTorch.

    Attributes:
      label_columns: the names of columns of 0 and 1, which replace the column `label`; each name is a label.
      separator: the string between the labels of a cell; '' for the first of `|`, `;` and `,` that occurs in any cell
        of the training file, or `|` if none does. A cell may also be a JSON list.
      threshold: the probability above which a label is predicted.
      metric: the metric that selects the best run; '' for 'micro_f1'.
    """

    label_columns: Sequence[str] = option((), list_of(text(empty=False)), affects='reading')
    separator: str = option('', affects='reading')
    threshold: float = option(0.5, number(0, 1, above=True, below=True), affects='reading')

    regression: ClassVar[bool] = False
    learned: ClassVar[Mapping[str, str]] = {'labels': 'labels', 'separator': '_separator'}
    _metric_names: ClassVar[tuple[str, ...]] = MULTI_LABEL_METRICS
    _no_label_advice: ClassVar[tuple[str, str]] = (
        "labels, or [] or '' for none",
        "write '' or [] for a record without labels",
    )

    def __post_init__(self):
        self._separator = self.separator
        super().__post_init__()
        columns = list(self.label_columns)
        if columns and (len(columns) < 2 or len({*columns, self.text_a, self.text_b}) < len(columns) + 2):
            expected = 'two or more names, all different and not those of the text columns'
            raise UserError('config.task.label_columns', repr(tuple(columns)), expected, 'use the names in your table')
        if columns and self.labels and self.labels != columns:
            expected = 'the names in config.task.label_columns'
            raise UserError('config.task.labels', repr(tuple(self.labels)), expected, 'leave it empty')
        self.labels = self.labels or columns

    @property
    def measures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.metric or MULTI_LABEL_METRICS[0], *MULTI_LABEL_METRICS)))

    @property
    def objective(self) -> Objective:
        return build_label_weighted(self._weights) if self._weights else MULTI_LABEL

    def learn(self, records: Sequence[Example]) -> None:
        """See ClassificationTask; warns about empty cells of `label_columns` if the training file also has a 0."""
        super().learn(records)
        empty, has_zero = list[str](), False
        for row in self._rows('train') if self.label_columns else ():
            cells = [(cell or '').strip().lower() for cell in row.values[len(self.text_columns) :]]
            has_zero |= any(cell and not _FLAGS[cell] for cell in cells)
            empty += [row.where] * cells.count('')
        if has_zero and empty:  # without a 0, an empty cell is the usual form of 0
            where = f'the first at {empty[0]}; are these missing labels?'
            print(f'warning: {len(empty):,} empty cells in config.task.label_columns count as 0, {where}')

    def _label_columns(self, required: bool) -> tuple[Column, ...]:
        key, names = 'label_columns' if self.label_columns else 'label', self.label_columns or (self.label,)
        return tuple(Column((name,), required, 'json', f'config.task.{key}') for name in names)

    def _join_label_cells(self, row: Row) -> str | None:
        """See ClassificationTask; with `label_columns`, the result is a JSON list of the columns with 1."""
        if not self.label_columns:
            return row.values[-1]
        if not any(name in row.fields for name in self.label_columns):
            return None
        names = []
        for name, cell in zip(self.label_columns, row.values[len(self.text_columns) :], strict=True):
            has_cell = name in row.fields  # an empty cell is '' in CSV and TSV, and null in other formats
            flag = _FLAGS.get((cell or '').strip().lower()) if has_cell else None
            if flag is None:
                found = f'{repr(cell[:40]) if has_cell else "no value"} in the column {name}'
                fix = 'correct the record or config.task.label_columns; an unlabeled test file has no label columns'
                raise UserError(row.where, found, '0 or 1', fix)
            names += [name] if flag else []
        return json.dumps(names)

    def _means_no_label(self, label: str) -> bool:
        """Whether all label cells of the test file are empty. If not, an empty cell is an empty set of labels."""
        return self._test_labels == {''}

    def _label(self, label: str, where: str) -> tuple[str, ...]:
        if label.startswith('['):
            try:
                names = json.loads(label)
            except (ValueError, RecursionError):
                names = None
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UserError(where, label[:40], 'a list of strings, such as ["a", "b"]', 'correct the record')
        else:
            names = label.split(self._find_separator()) if label else []
        names = list(dict.fromkeys(name.strip() for name in names))
        if '' in names:
            raise UserError(where, f'an empty label in {label[:40]!r}', 'labels', 'correct the record')
        for name in names:
            self._check_known(name, where)
        return tuple(names)

    def _find_separator(self) -> str:
        """Returns the separator of the labels in a cell. An unknown separator is detected in the training file."""
        if not self._separator:
            if not self._files.find('train'):
                found, expected = 'nothing, without a training file', 'the separator of the labels of a record'
                raise UserError('config.task.separator', found, expected, "for example --config.task.separator=','")
            cells = [row.values[-1] or '' for row in self._rows('train')]
            plain = ''.join(cell for cell in cells if not cell.lstrip().startswith('['))
            marks = [mark for mark in _SEPARATORS if mark in plain]
            self._separator = marks[0] if marks else _SEPARATORS[0]
            print(f'the separator of the labels of a record is {self._separator!r}')
            if len(marks) > 1:
                question = 'are these several labels? config.task.separator sets the separator'
                print(f'warning: labels contain {" and ".join(map(repr, marks[1:]))}; {question}')
        return self._separator

    def _balanced_weights(self, counts: Sequence[int], total: int) -> list[float]:
        """Returns (total - count) / count for each label, or 1 if no record or every record has the label.

        The documentation of torch's BCEWithLogitsLoss suggests this ratio.
        """
        return [(total - count) / count if 0 < count < total else 1.0 for count in counts]

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._separator = self.separator or self._separator

    def _targets(self, records: Sequence[Example]) -> np.ndarray:
        """Returns float32 [N, C]: 1 for each label of a record, 0 for the other labels."""
        targets = np.zeros((len(records), len(self.labels)), np.float32)
        number = {label: i for i, label in enumerate(self.labels)}
        for row, record in zip(targets, records, strict=True):
            for label in record.label:
                if label not in number:
                    self._check_known(label, record.where)  # raises an error that names the labels
                row[number[label]] = 1
        return targets

    def _probabilities(self, predictions: Logits) -> np.ndarray:
        """Returns the probability of each label, float64 [N, C]."""
        return 1 / (1 + np.exp(-np.asarray(predictions)))

    def _decisions(self, predictions: Logits) -> np.ndarray:
        """Returns a mask of the predicted labels, bool [N, C]."""
        return self._probabilities(predictions) > self.threshold

    def metrics(self, records: Sequence[Example], predictions: Logits) -> dict[str, float | None]:
        """Returns the metrics in `measures`, each in [0, 1]. `records` must not be empty."""
        values = multi_label_figures(self._targets(records), self._decisions(predictions))
        return {name: values[name] for name in self.measures}

    def collapsed(self, records: Sequence[Example], predictions: Logits) -> bool:
        """Whether all records have the same predicted labels, although their true labels differ."""
        predicted, true = (len(np.unique(x, axis=0)) for x in (self._decisions(predictions), self._targets(records)))
        return predicted == 1 < true

    def report(self, records: Sequence[Example], predictions: Logits) -> str:
        """Returns the report on the predicted labels, see report.py:label_report."""
        true, predicted = self._targets(records) > 0, self._decisions(predictions)
        return label_report(label_scores(true, predicted), multi_label_figures(true, predicted), self.labels)

    def rows(self, records: Sequence[Example], predictions: Logits) -> Iterator[dict[str, Any]]:
        """Yields {labels, probabilities: {label: probability}, true} for each record; only labeled ones have `true`."""
        probabilities, decisions = self._probabilities(predictions), self._decisions(predictions)
        for record, label_probabilities, decided in zip(records, probabilities, decisions, strict=True):
            row: dict[str, Any] = {'labels': [self.labels[i] for i in np.flatnonzero(decided)]}
            row['probabilities'] = dict(zip(self.labels, label_probabilities.tolist(), strict=True))
            yield row if record.label is None else {**row, 'true': list(record.label)}

    def judgments(self, records: Sequence[Example], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        for record, row in zip(records, rows, strict=True):
            true, predicted, probabilities = set(record.label), set(row['labels']), row['probabilities']
            check_same_label({'true': set(row.get('true', true))}, true, record.where)  # in any order
            pairs = [(label if label in true else '', label if label in predicted else '') for label in self.labels]
            classes = [pair for pair in pairs if any(pair)]
            error = sum(1 + abs(probabilities[label] - self.threshold) for label in true ^ predicted)
            names = [', '.join(sorted(labels)) or 'none' for labels in (true, predicted)]
            yield Judgment(name_texts(record), *names, error, classes)

    def baselines(self, train: Sequence[Example], records: Sequence[Example]) -> dict[str, Logits]:
        return label_baselines(train, self._targets(train), records)

    def huggingface(self) -> dict[str, Any]:
        return {**super().huggingface(), 'problem_type': 'multi_label_classification'}
