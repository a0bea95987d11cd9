"""Classification and regression of texts or text pairs from any table with named columns."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from bertjax.config.ranges import format_value, list_of, number, one_of, text
from bertjax.errors import UserError
from bertjax.losses import Objective, build_class_weighted
from bertjax.metrics.classification import CLASS_METRICS, VALUE_METRICS
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import TEXT_FORMATS, Row, read_rows
from bertjax.tasks.reading.splits import STEMS, TableFiles
from bertjax.tasks.sentence.labels import count_labels, find_labels
from bertjax.tasks.sentence.task import Example, Logits, TextTask
from bertjax.tasks.task import check_all_or_none, option
from bertjax.text.hash_split import hash64, hash_threshold

# SICK (SemEval-2014, task 1): {predicted column: its labels}.
_SICK = {'entailment_judgment': ['CONTRADICTION', 'ENTAILMENT', 'NEUTRAL'], 'relatedness_score': []}
_SCORE_METRICS = ('spearman', 'pearson')  # the values of `metric` for a regression
_UNLABELED = {'-1', '-1.0'}  # labels of an unlabeled record in a test file
_WEIGHTS_KEY = 'config.task.class_weights'
_WEIGHTS = number(1e-9, 1e9)  # outside this range, float32 sums may lose precision


@dataclasses.dataclass
class ClassificationTask(TextTask):
    """Assigns a label, or a score if `regression` is True, to a text or a pair of texts.

    Attributes:
      data, seq_len, long, stride, bilstm_units: see TextTask. `data` may also be the training file.
      text_a, text_b, label: the names of the columns; `text_b` is '' if a record has a single text.
      train, dev, test: the names of files in `data` or its folder, or of splits of `dataset`; '' searches a folder for
        train.csv, val.jsonl, test-00000-of-00002.parquet and similar names. The test file may lack labels.
      dev_fraction: the fraction of the training records that becomes dev if there is no dev file; 0 for no dev. A hash
        of the text selects these records. Equal texts are therefore in the same split. A record stays in its split when
        others are added.
      labels: the labels in the order of their indices; () collects and sorts the labels of the training file. For
        `f1`, the second of two labels is positive.
      regression: whether the label is a score.
      class_weights: the weights of the labels in the loss: 'balanced' for higher weights of rare labels, or
        'LABEL=2.5,LABEL=1', or JSON; '' for equal weights.
      metric: the metric that selects the best run; '' for 'accuracy', or 'spearman' for a regression.
      columns: the names of the columns, for files without a header.
      format: 'tsv', 'csv', 'jsonl' or 'json', for text files; 'auto' selects by suffix.
      dataset: the name of a dataset in tensorflow-datasets, used if `data` is ''.
    """

    text_a: str = option('text', text(empty=False), affects='reading')
    text_b: str = option('', affects='reading')
    label: str = option('label', text(empty=False), affects='reading')
    train: str = option('', affects='reading')
    dev: str = option('', affects='reading')
    test: str = option('', affects='reading')
    dev_fraction: float = option(0.1, number(0, 1, below=True))
    labels: Sequence[str] = option((), list_of(text(empty=False)))
    regression: bool = False
    class_weights: str = ''
    metric: str = option('', affects='model')
    columns: Sequence[str] = option((), list_of(text(empty=False)), affects='reading')
    format: str = option('auto', one_of(('auto', *TEXT_FORMATS)), affects='reading')
    dataset: str = option('', affects='reading')

    # The values of `metric` for a classification.
    _metric_names: ClassVar[tuple[str, ...]] = tuple(CLASS_METRICS)
    # The expectation and the fix in the error about a record without a label.
    _no_label_advice: ClassVar[tuple[str, str]] = ('a string or a number', 'correct or remove the record')

    def __post_init__(self):
        super().__post_init__()
        files = {'train': self.train, 'dev': self.dev, 'test': self.test}
        self._files = TableFiles(self.data, self.dataset, files, self._has_labels)
        self.name = self.name or self.dataset or 'classification'
        self._weights: tuple[float, ...] = ()
        columns = {'text_a': self.text_a, 'text_b': self.text_b}
        self.text_columns = tuple(Column((name,), key=f'config.task.{key}') for key, name in columns.items() if name)
        names = [name for name in (self.text_a, self.text_b, self.label) if name]
        if len(set(names)) < len(names):
            found = f'text_a={self.text_a!r}, text_b={self.text_b!r}, label={self.label!r}'
            raise UserError('config.task', found, 'different column names', 'use the names in your table')
        allowed = _SCORE_METRICS if self.regression else self._metric_names
        if self.metric and self.metric not in allowed:
            raise UserError('config.task.metric', repr(self.metric), 'one of ' + ', '.join(allowed), 'choose one')
        if self.class_weights and self.regression:
            found, expected = repr(self.class_weights), "'', because scores have no labels"
            raise UserError(_WEIGHTS_KEY, found, expected, 'leave it empty')
        self._class_weights = _parse_class_weights(self.class_weights)

    @property
    def measures(self) -> tuple[str, ...]:
        """See TextTask. Raises a UserError if `metric` is 'f1' and the number of known labels is not two."""
        if self.labels:
            self._check_metric()
        names = tuple(VALUE_METRICS if self.regression else CLASS_METRICS)
        if len(self.labels) != 2:
            names = tuple(name for name in names if name != 'f1')
        return tuple(dict.fromkeys((self.metric, *names))) if self.metric else names

    def learn(self, records: Sequence[Example]) -> None:
        """See TextTask; if dev is a part of the training file, labels that occur only in dev are included."""
        if self.shares_dev and not self.complete:
            all_records = [self._example(row, 'train') for row in self._rows('train')]
            self.labels = find_labels(all_records)
        super().learn(records)
        if self.class_weights:
            self._weights = tuple(self._label_weights(records))
            pairs = zip(self.labels, self._weights, strict=True)
            print('weights in the loss: ' + ', '.join(f'{label} {weight:.4g}' for label, weight in pairs))
        self._check_metric()

    def _check_metric(self) -> None:
        if self.metric == 'f1' and len(self.labels) != 2:
            found = f"'f1' with {len(self.labels)} labels"
            raise UserError('config.task.metric', found, "'macro_f1'", 'set config.task.metric=macro_f1')

    def _label_weights(self, records: Sequence[Example]) -> list[float]:
        """Returns the weight of each label in the loss; 1 for a label that `class_weights` lacks."""
        if self.class_weights == 'balanced':
            counts = count_labels(records)
            return self._balanced_weights([counts[label] for label in self.labels], len(records))
        for label in self._class_weights:
            if label not in self.labels:
                known = ', '.join(self.labels[:30])
                raise UserError(_WEIGHTS_KEY, f'a weight of {label!r}', f'one of {known}', 'correct the label')
        return [self._class_weights.get(label, 1.0) for label in self.labels]

    def _balanced_weights(self, counts: Sequence[int], total: int) -> list[float]:
        """Returns total / (C · count) for each of C labels, as in scikit-learn's 'balanced'; 1 if the count is 0."""
        return [total / (len(counts) * count) if count else 1.0 for count in counts]

    @property
    def objective(self) -> Objective:
        return build_class_weighted(self._weights) if self._weights else super().objective

    def splits(self) -> Sequence[str]:
        found = {'train', *self._files.splits(), *(['dev'] if self.dev_fraction else [])}
        return [split for split in STEMS if split in found]

    def records(self, split: str) -> Sequence[Example]:
        shared = self.shares_dev and split in ('train', 'dev')
        records, total = list[Example](), 0
        # The records of the other split are not kept, because their fields may need much memory.
        for row in self._rows('train' if shared else split):
            record = self._example(row, split)
            total += 1
            if not shared or is_held_out(record, self.dev_fraction) == (split == 'dev'):
                records.append(record)
        if shared and split == 'dev':
            share = f'{len(records):,} of the {total:,} records of train, selected by a hash of their text'
            hint = 'sets the fraction, or set config.task.dev to a file'
            print(f'dev is {share}; config.task.dev_fraction={self.dev_fraction:g} {hint}')
        if not records:
            found = f'{self.dev_fraction:g}, which leaves no record of {self.data or self.dataset} for {split}'
            fix = 'add records, name a dev file in config.task.dev, or train with another fraction; 0 for no dev split'
            raise UserError('config.task.dev_fraction', found, 'records in both splits', fix)
        check_all_or_none(records)
        return records

    @property
    def shares_dev(self) -> bool:
        """Whether dev is a part of the training file."""
        return self.dev_fraction > 0 and not self._files.find('dev')

    def _example(self, row: Row, split: str) -> Example:
        count = len(self.text_columns)
        texts, label = row.values[:count], self._join_label_cells(row)
        if label is None and split != 'test':
            raise UserError(row.where, 'no label', *self._no_label_advice)
        if split == 'test' and label is not None and self._means_no_label(label.strip()):
            label = None
        fields = None if split == 'train' else row.fields
        return self.example(Row(row.where, texts, fields), label)

    def _means_no_label(self, label: str) -> bool:
        """Whether the label cell of a test record means 'no label'. An empty cell always means this.

        In a classification, -1 means 'no label' if the labels are known and -1 is not one of them. In a regression, -1
        means 'no label' if every record of test has -1.
        """
        if self.regression and label:
            return self._test_labels <= _UNLABELED
        return not label or (label in _UNLABELED and bool(self.labels) and label not in self.labels)

    @functools.cached_property
    def _test_labels(self) -> set[str]:
        """The distinct label cells of the test file."""
        count = len(self.text_columns)
        return {(cell or '').strip() for row in self._rows('test') for cell in row.values[count:]}

    def _label_columns(self, required: bool) -> tuple[Column, ...]:
        return (Column((self.label,), required, 'refuse', 'config.task.label'),)

    def _join_label_cells(self, row: Row) -> str | None:
        """Combines the cells of the label columns into a single cell; None if there is no label."""
        return row.values[-1]

    def _rows(self, split: str) -> Iterator[Row]:
        columns = (*self.text_columns, *self._label_columns(required=split != 'test'))
        return read_rows(self._files.require(split), TableLayout(columns, tuple(self.columns)), self.format)

    def official_files(self, split: str, records: Sequence[Example], predictions: Logits) -> dict[str, str]:
        """For SICK, returns the input file of SemEval-2014's sick_evaluation.R; for other data, {}.

        The file has three columns, separated by tabs. The script requires NA in the column that is not predicted.
        """
        ids = [str((record.fields or {}).get('pair_ID')) for record in records]
        if _SICK.get(self.label) != sorted(self.labels) or not all(id.isdecimal() for id in ids):
            return {}
        rows = [('pair_ID', *_SICK)]
        for id, logits in zip(ids, predictions, strict=True):
            answer = f'{logits[0]:.4f}' if self.regression else self.labels[logits.argmax()]
            rows.append((id, *(answer if name == self.label else 'NA' for name in _SICK)))
        return {f'{split}.txt': ''.join('\t'.join(row) + '\n' for row in rows)}

    def sources(self) -> str:
        dev = f'a share of {self.dev_fraction:g} of train' if self.shares_dev else 'none'
        return self._files.describe(dev=dev)


def is_held_out(record: Example, share: float) -> bool:
    """Whether a record of the training file belongs to dev. A hash of the texts selects a fraction `share` for dev.

    The hash ignores case and differences in white space.
    """
    text = '\0'.join(' '.join(text.casefold().split()) for text in (record.first, record.second or ''))
    digest = hashlib.blake2b(text.encode('utf-8'), digest_size=8).digest()
    return hash64(digest) < hash_threshold(share)


def _parse_class_weights(text: str) -> Mapping[str, float]:
    """Parses `LABEL=WEIGHT,…`, or a JSON object for labels with commas. The result is {} for '' and 'balanced'."""
    if text in ('', 'balanced'):
        return {}
    try:
        if text.startswith('{'):
            weights = {str(label): float(weight) for label, weight in json.loads(text).items()}
        else:
            pairs = [item.rpartition('=') for item in text.split(',')]
            weights = {label.strip(): float(weight) for label, _, weight in pairs}
            weights = weights if len(weights) == len(pairs) else {}
    except (ValueError, TypeError, OverflowError):
        weights = {}
    if not weights or not all(map(_WEIGHTS.contains, weights.values())):
        expected = f"'balanced', or for each label {_WEIGHTS.words}"
        raise UserError(_WEIGHTS_KEY, format_value(text), expected, f"for example --{_WEIGHTS_KEY}='spam=2.5,ham=1'")
    return weights
