"""Classification or regression of texts, or pairs of texts, from any table with named columns."""

import dataclasses
import hashlib
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from bertjax.config.ranges import each, number, one_of, text
from bertjax.errors import UserError
from bertjax.losses import Objective, build_class_weighted
from bertjax.metrics.classification import OF_VALUES
from bertjax.tasks.options import option
from bertjax.tasks.reading.layout import Column, Layout
from bertjax.tasks.reading.records import FORMATS, Row
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.sentence.class_weights import KEY, balanced_classes, check_class_weights, class_weights
from bertjax.tasks.sentence.files import TableFiles
from bertjax.tasks.sentence.labels import find_labels
from bertjax.tasks.sentence.sick import ENTAILMENT, PAIR_ID, RELATEDNESS, is_sick, semeval_file
from bertjax.tasks.sentence.task import Example, Scores, TextTask
from bertjax.text.hash_split import hash64, hash_threshold

_OF_SCORES = ('spearman', 'pearson')  # figures, for `metric`
_UNLABELLED = '-1'  # what a test file may have in place of a label that it does not tell


@dataclasses.dataclass
class ClassificationTask(TextTask):
    """A label, or with `regression` a score, for a text or a pair.

    Attributes:
      data, seq_len, long, stride, bilstm_units: see TextTask. `data` may also be the file to train on.
      text_a, text_b, label: names of columns; without `text_b` there is one text.
      train, dev, test: names of files in `data` (or splits of `dataset`); '' looks for train.csv, val.jsonl,
        valid.tsv.gz, test-00000-of-00002.parquet and the like, see splits.py. The test file may lack labels.
      dev_fraction: without a dev file, this share of the training records is dev, chosen by a hash of the text: equal
        texts are never in both splits, and adding records moves none of the others.
      labels: in the order of their numbers; () finds them in the training file and sorts them. For `f1` the second of
        two is the positive class.
      regression: the label is a number.
      class_weights: how much a label counts in the loss: 'balanced' by how rare it is, or 'LABEL=2.5,LABEL=1', see
        class_weights.py; '' all the same.
      metric: the figure by which the best run is chosen; '' is 'accuracy', or for scores 'spearman'.
      columns: names of the columns of files without a header.
      format: 'tsv', 'csv', 'jsonl' or 'json' where the suffix does not tell, see records.py.
      dataset: of tensorflow-datasets, where `data` is ''.
    """

    text_a: str = option('text', text(empty=False), decides='reading')
    text_b: str = option('', decides='reading')
    label: str = option('label', text(empty=False), decides='reading')
    train: str = option('', decides='reading')
    dev: str = option('', decides='reading')
    test: str = option('', decides='reading')
    dev_fraction: float = option(0.1, number(0, 1, below=True))
    labels: Sequence[str] = option((), each(text(empty=False)))
    regression: bool = False
    class_weights: str = ''
    metric: str = ''
    columns: Sequence[str] = option((), each(text(empty=False)), decides='reading')
    format: str = option('auto', one_of(('auto', *dict.fromkeys(FORMATS.values()))), decides='reading')
    dataset: str = option('', decides='reading')

    _figures: ClassVar[tuple[str, ...]] = ('accuracy', 'f1', 'macro_f1', 'matthews')  # of labels, for `metric`

    def __post_init__(self):
        super().__post_init__()
        self.labels = list(self.labels)
        names = {'train': self.train, 'dev': self.dev, 'test': self.test}
        self._files = TableFiles(self.data, self.dataset, names, self.format)
        self._of_both = 0  # records of the file that train and dev share, when it was read
        self.name = pathlib.PurePath(self.data).name or self.dataset or 'classification'
        self._weights: tuple[float, ...] = ()
        self.text_columns = tuple(Column((name,)) for name in (self.text_a, self.text_b) if name)
        self._check()

    def _check(self) -> None:
        names = [name for name in (self.text_a, self.text_b, self.label) if name]
        if len(set(names)) < len(names):
            found = f'text_a={self.text_a!r}, text_b={self.text_b!r}, label={self.label!r}'
            raise UserError('config.task', found, 'different names of columns', 'name those of your table')
        if self.labels and (self.regression or len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            expected = 'nothing, for scores have no labels' if self.regression else 'two or more, all different'
            fix = 'leave it empty to find the labels in the data'
            raise UserError('config.task.labels', repr(tuple(self.labels)), expected, fix)
        allowed = _OF_SCORES if self.regression else self._figures
        if self.metric and self.metric not in allowed:
            raise UserError('config.task.metric', repr(self.metric), 'one of ' + ', '.join(allowed), 'choose one')
        if self.class_weights and self.regression:
            raise UserError(KEY, repr(self.class_weights), "'', for scores have no labels", 'leave it empty')
        check_class_weights(self.class_weights)

    @property
    def measures(self) -> tuple[str, ...]:
        """See TextTask; `f1` needs exactly two labels."""
        names = tuple(OF_VALUES) if self.regression else ('accuracy', 'macro_f1', 'matthews')
        if len(self.labels) == 2:
            names += ('f1',)
        return tuple(dict.fromkeys((self.metric, *names))) if self.metric else names

    def learn(self, records: Sequence[Example]) -> None:
        """See TextTask; where dev is split off the training file, includes labels that only occur in dev."""
        self._tell_dev(records)
        if self._shares_dev and not self.complete:
            everything = self._all_of_train()
            self.labels = find_labels(Counter(record.label for record in everything), everything)
        super().learn(records)
        if not self.regression:
            counts = Counter(record.label for record in records)
            self._weigh(balanced_classes([counts[label] for label in self.labels]))
        if self.metric == 'f1' and len(self.labels) != 2:
            found = f"'f1' with {len(self.labels)} labels"
            raise UserError('config.task.metric', found, "'macro_f1'", 'set config.task.metric=macro_f1')

    def _tell_dev(self, records: Sequence[Example]) -> None:
        """Prints how much of the training file became dev; `records` are what is left."""
        if self._shares_dev and self._of_both:
            taken = f'{self._of_both - len(records):,} of the {self._of_both:,} records of train'
            more = f'config.task.dev_fraction={self.dev_fraction:g} says how many, a file such as dev.csv replaces it'
            print(f'dev is {taken}, chosen by a hash of their text: {more}')

    def _all_of_train(self) -> list[Example]:
        """The records of the training file, those of dev among them."""
        return [self._example(row, 'train') for row in self._rows('train')]

    def _weigh(self, balanced: Sequence[float]) -> None:
        """Sets and prints the weights of the labels, where there are any; `balanced` are those of 'balanced'."""
        if self.class_weights:
            self._weights = class_weights(self.class_weights, self.labels, balanced)
            shown = ', '.join(f'{label} {weight:.4g}' for label, weight in zip(self.labels, self._weights, strict=True))
            print(f'weights in the loss: {shown}')

    @property
    def objective(self) -> Objective:
        """See Task."""
        return build_class_weighted(self._weights) if self._weights else super().objective

    def splits(self) -> Sequence[str]:
        """See Task."""
        found = ['train']
        if self._files.find('dev') or self.dev_fraction:
            found.append('dev')
        if self._files.find('test') and self._example(next(self._rows('test')), 'test').label is not None:
            found.append('test')
        return found

    def records(self, split: str) -> Sequence[Example]:
        """See Task."""
        if split not in STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')
        shared = self._shares_dev and split != 'test'
        records = [self._example(row, split) for row in self._rows('train' if shared else split)]
        if shared:
            self._of_both = len(records)
            records = [record for record in records if held_out(record, self.dev_fraction) == (split == 'dev')]
        if not records:
            found = f'{self.dev_fraction:g}, which leaves no record of {self._files.called("train")} for {split}'
            fix = 'give more records, a dev file, or another share such as 0.3; 0 does without dev'
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
        texts, label = row.values[:count], self._one_cell(row.values[count:], row.where)
        if label is None and split != 'test':
            raise UserError(row.where, 'no label', 'a string or a number', 'correct or remove the record')
        if split == 'test' and label is not None and self._stands_for_none(label.strip()):
            label = None
        return self.example(row.where, texts, label, self._index(row), row.fields if label is None else None)

    def _stands_for_none(self, label: str) -> bool:
        """Whether a test file's label is no label: nothing, or -1 where that is none of the known."""
        return not label or (label == _UNLABELLED and bool(self.labels) and label not in self.labels)

    def _label_cells(self, required: bool) -> tuple[Column, ...]:
        """The columns of the labels."""
        return (Column((self.label,), required=required, joined=False),)

    def _one_cell(self, cells: Sequence[str | None], where: str) -> str | None:
        """What the cells of those columns say, as one cell; None where there is no label."""
        del where
        return cells[0]

    def _rows(self, split: str) -> Iterator[Row]:
        columns = (*self.text_columns, *self._label_cells(required=split != 'test'))
        return self._files.rows(split, Layout(columns, tuple(self.columns)))

    def _index(self, row: Row) -> str:
        """See TextTask: the pair_ID of SICK."""
        number = str((row.fields or {}).get(PAIR_ID, ''))
        known = self.label in (ENTAILMENT, RELATEDNESS) and number.isascii() and number.isdecimal()
        return number if known else ''

    def official_files(self, split: str, records: Sequence[Example], predictions: Sequence[Scores]) -> dict[str, str]:
        """For SICK the file of SemEval-2014, see sick.py; none where a record has no pair_ID."""
        if not is_sick(self.label, self.labels) or not all(record.index for record in records):
            return {}
        answers = [f'{x.value:.4f}' if self.regression else self.labels[x.best] for x in predictions]
        return {f'{split}.txt': semeval_file(self.label, [record.index for record in records], answers)}

    def sources(self) -> str:
        """See Task."""
        dev = f'a share of {self.dev_fraction:g} of train' if self._shares_dev else 'none'
        return self._files.describe(dev, self.splits())


def held_out(record: Example, share: float) -> bool:
    """Whether a record belongs to a dev split of this share, by a hash of its text (case and white space ignored)."""
    text = '\0'.join(' '.join(text.casefold().split()) for text in (record.first, record.second or ''))
    digest = hashlib.blake2b(text.encode('utf-8'), digest_size=8).digest()
    return hash64(digest) < hash_threshold(share)
