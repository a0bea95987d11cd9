"""Classification or regression of texts, or pairs of texts, from any table with named columns."""

import dataclasses
import hashlib
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from bertjax.config.ranges import list_of, number, one_of, text
from bertjax.errors import UserError
from bertjax.losses import Objective, build_class_weighted
from bertjax.metrics.classification import OF_VALUES
from bertjax.tasks.options import option
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import FORMATS, Row
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.sentence.class_weights import KEY, balanced_class_weights, check_class_weights, class_weights
from bertjax.tasks.sentence.files import TableFiles
from bertjax.tasks.sentence.labels import find_labels
from bertjax.tasks.sentence.sick import ENTAILMENT, PAIR_ID, RELATEDNESS, is_sick, semeval_file
from bertjax.tasks.sentence.task import Example, Scores, TextTask
from bertjax.text.hash_split import hash64, hash_threshold

_SCORE_METRICS = ('spearman', 'pearson')  # choices of `metric` for a regression
_UNLABELLED = '-1'  # stands for a secret label in a test file


@dataclasses.dataclass
class ClassificationTask(TextTask):
    """Assigns a label, or a score if `regression`, to a text or a pair of texts.

    Attributes:
      data, seq_len, long, stride, bilstm_units: see TextTask. `data` may also be the file to train on.
      text_a, text_b, label: the names of the columns; '' for `text_b` if a record has one text.
      train, dev, test: the names of files in `data` (or of splits of `dataset`); '' searches for train.csv, val.jsonl,
        valid.tsv.gz, test-00000-of-00002.parquet and similar names, see splits.py. The test file may lack labels.
      dev_fraction: the share of the training records that become dev if there is no dev file. A hash of the text
        selects them, so that equal texts are never in both splits, and new records do not move old ones.
      labels: the labels in the order of their numbers; () collects them from the training file and sorts them. For
        `f1` the second of two labels is the positive class.
      regression: whether the label is a number.
      class_weights: the weights of the labels in the loss: 'balanced' for higher weights of rare labels, or
        'LABEL=2.5,LABEL=1', see class_weights.py; '' for equal weights.
      metric: the name of the metric that selects the best run; '' for 'accuracy', or 'spearman' for scores.
      columns: the names of the columns of files without a header.
      format: 'tsv', 'csv', 'jsonl' or 'json' if the suffix does not show it, see records.py.
      dataset: the name of a dataset of tensorflow-datasets, used if `data` is ''.
    """

    text_a: str = option('text', text(empty=False), decides='reading')
    text_b: str = option('', decides='reading')
    label: str = option('label', text(empty=False), decides='reading')
    train: str = option('', decides='reading')
    dev: str = option('', decides='reading')
    test: str = option('', decides='reading')
    dev_fraction: float = option(0.1, number(0, 1, below=True))
    labels: Sequence[str] = option((), list_of(text(empty=False)))
    regression: bool = False
    class_weights: str = ''
    metric: str = ''
    columns: Sequence[str] = option((), list_of(text(empty=False)), decides='reading')
    format: str = option('auto', one_of(('auto', *dict.fromkeys(FORMATS.values()))), decides='reading')
    dataset: str = option('', decides='reading')

    _metric_names: ClassVar[tuple[str, ...]] = (
        'accuracy',
        'f1',
        'macro_f1',
        'matthews',
    )  # choices of `metric` for labels

    def __post_init__(self):
        super().__post_init__()
        self.labels = list(self.labels)
        names = {'train': self.train, 'dev': self.dev, 'test': self.test}
        self._files = TableFiles(self.data, self.dataset, names, self.format)
        self._shared_records = 0  # number of records in the file that train and dev share, once it is read
        self.name = pathlib.PurePath(self.data).name or self.dataset or 'classification'
        self._weights: tuple[float, ...] = ()
        self.text_columns = tuple(Column((name,)) for name in (self.text_a, self.text_b) if name)
        self._check()

    def _check(self) -> None:
        names = [name for name in (self.text_a, self.text_b, self.label) if name]
        if len(set(names)) < len(names):
            found = f'text_a={self.text_a!r}, text_b={self.text_b!r}, label={self.label!r}'
            raise UserError('config.task', found, 'different names of columns', 'use the names in your table')
        if self.labels and (self.regression or len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            expected = 'nothing, because scores have no labels' if self.regression else 'two or more, all different'
            fix = 'leave it empty to find the labels in the data'
            raise UserError('config.task.labels', repr(tuple(self.labels)), expected, fix)
        allowed = _SCORE_METRICS if self.regression else self._metric_names
        if self.metric and self.metric not in allowed:
            raise UserError('config.task.metric', repr(self.metric), 'one of ' + ', '.join(allowed), 'choose one')
        if self.class_weights and self.regression:
            raise UserError(KEY, repr(self.class_weights), "'', because scores have no labels", 'leave it empty')
        check_class_weights(self.class_weights)

    @property
    def measures(self) -> tuple[str, ...]:
        """See TextTask; `f1` needs exactly two labels."""
        names = tuple(OF_VALUES) if self.regression else ('accuracy', 'macro_f1', 'matthews')
        if len(self.labels) == 2:
            names += ('f1',)
        return tuple(dict.fromkeys((self.metric, *names))) if self.metric else names

    def learn(self, records: Sequence[Example]) -> None:
        """See TextTask; if dev is a part of the training file, the labels include those that only occur in dev."""
        self._print_dev_share(records)
        if self._shares_dev and not self.complete:
            everything = self._read_shared_file()
            self.labels = find_labels(Counter(record.label for record in everything), everything)
        super().learn(records)
        if not self.regression:
            counts = Counter(record.label for record in records)
            self._set_class_weights(balanced_class_weights([counts[label] for label in self.labels]))
        if self.metric == 'f1' and len(self.labels) != 2:
            found = f"'f1' with {len(self.labels)} labels"
            raise UserError('config.task.metric', found, "'macro_f1'", 'set config.task.metric=macro_f1')

    def _print_dev_share(self, records: Sequence[Example]) -> None:
        """Prints how much of the training file became dev; `records` are the others, for training."""
        if self._shares_dev and self._shared_records:
            dev_share = f'{self._shared_records - len(records):,} of the {self._shared_records:,} records of train'
            hint = f'config.task.dev_fraction={self.dev_fraction:g} says how many, a file such as dev.csv replaces it'
            print(f'dev is {dev_share}, chosen by a hash of their text: {hint}')

    def _read_shared_file(self) -> list[Example]:
        """Returns all records of the training file, including those of dev."""
        return [self._example(row, 'train') for row in self._rows('train')]

    def _set_class_weights(self, balanced: Sequence[float]) -> None:
        """Sets and prints the weights of the labels, if any; `balanced` are the weights for 'balanced'."""
        if self.class_weights:
            self._weights = class_weights(self.class_weights, self.labels, balanced)
            pairs = zip(self.labels, self._weights, strict=True)
            print('weights in the loss: ' + ', '.join(f'{label} {weight:.4g}' for label, weight in pairs))

    @property
    def objective(self) -> Objective:
        """See Task."""
        return build_class_weighted(self._weights) if self._weights else super().objective

    def splits(self) -> Sequence[str]:
        """See Task."""
        names = ['train']
        if self._files.find('dev') or self.dev_fraction:
            names.append('dev')
        if self._files.find('test') and self._example(next(self._rows('test')), 'test').label is not None:
            names.append('test')
        return names

    def records(self, split: str) -> Sequence[Example]:
        """See Task."""
        if split not in STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')
        shared = self._shares_dev and split != 'test'
        records = [self._example(row, split) for row in self._rows('train' if shared else split)]
        if shared:
            self._shared_records = len(records)
            records = [record for record in records if is_held_out(record, self.dev_fraction) == (split == 'dev')]
        if not records:
            found = (
                f'{self.dev_fraction:g}, which leaves no record of {self._files.describe_files("train")} for {split}'
            )
            fix = 'give more records, a dev file, or another share such as 0.3; 0 for no dev split'
            raise UserError('config.task.dev_fraction', found, 'records on both sides', fix)
        bare = [record.where for record in records if record.label is None]
        if bare and len(bare) < len(records):
            raise UserError(bare[0], 'no label', 'one, as other records have', 'correct or remove the record')
        return records

    @property
    def _shares_dev(self) -> bool:
        """Whether dev is split off the training file."""
        return self.dev_fraction > 0 and not self._files.find('dev')

    def _example(self, row: Row, split: str) -> Example:
        count = len(self.text_columns)
        texts, label = row.values[:count], self._join_label_cells(row.values[count:], row.where)
        if label is None and split != 'test':
            raise UserError(row.where, 'no label', 'a string or a number', 'correct or remove the record')
        if split == 'test' and label is not None and self._means_no_label(label.strip()):
            label = None
        return self.example(row.where, texts, label, self._index(row), row.fields if label is None else None)

    def _means_no_label(self, label: str) -> bool:
        """Whether the label in a test file means 'unknown': it is '', or -1 if that is not a known label."""
        return not label or (label == _UNLABELLED and bool(self.labels) and label not in self.labels)

    def _label_columns(self, required: bool) -> tuple[Column, ...]:
        """Returns the columns that hold the label."""
        return (Column((self.label,), required=required, join_list=False),)

    def _join_label_cells(self, cells: Sequence[str | None], where: str) -> str | None:
        """Joins the cells of the label columns into one cell; None if there is no label."""
        del where
        return cells[0]

    def _rows(self, split: str) -> Iterator[Row]:
        columns = (*self.text_columns, *self._label_columns(required=split != 'test'))
        return self._files.rows(split, TableLayout(columns, tuple(self.columns)))

    def _index(self, row: Row) -> str:
        """See TextTask; the pair_ID of SICK."""
        number = str((row.fields or {}).get(PAIR_ID, ''))
        known = self.label in (ENTAILMENT, RELATEDNESS) and number.isascii() and number.isdecimal()
        return number if known else ''

    def official_files(self, split: str, records: Sequence[Example], predictions: Sequence[Scores]) -> dict[str, str]:
        """Returns the file of SemEval-2014 for SICK, see sick.py; {} if a record has no pair_ID."""
        if not is_sick(self.label, self.labels) or not all(record.index for record in records):
            return {}
        answers = [f'{scores.value:.4f}' if self.regression else self.labels[scores.best] for scores in predictions]
        return {f'{split}.txt': semeval_file(self.label, [record.index for record in records], answers)}

    def sources(self) -> str:
        """See Task."""
        dev = f'a share of {self.dev_fraction:g} of train' if self._shares_dev else 'none'
        return self._files.describe(dev, self.splits())


def is_held_out(record: Example, share: float) -> bool:
    """Whether a record is in a dev split of this share, by a hash of its text (ignoring case and white space)."""
    text = '\0'.join(' '.join(text.casefold().split()) for text in (record.first, record.second or ''))
    digest = hashlib.blake2b(text.encode('utf-8'), digest_size=8).digest()
    return hash64(digest) < hash_threshold(share)
