"""Classification or regression of texts, or pairs of texts, from any table with named columns."""

import dataclasses
import hashlib
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import at_most_one, data_directory, existing_files
from bertjax.metrics.classification import OF_VALUES
from bertjax.ranges import each, number, one_of, text
from bertjax.tasks.options import option
from bertjax.tasks.reading.sources import dataset_splits, read_rows
from bertjax.tasks.reading.tables import FORMATS, Column, Layout, Row, read_table
from bertjax.tasks.sentence.report import find_labels
from bertjax.tasks.sentence.task import Example, TextTask
from bertjax.text.hash_split import hash64, hash_threshold

# Names of a split's file without suffix, and of a split of tensorflow-datasets.
_STEMS = {'train': ('train',), 'dev': ('dev', 'valid', 'validation'), 'test': ('test',)}
_METRICS, _OF_SCORES = ('accuracy', 'f1', 'macro_f1', 'matthews'), ('spearman', 'pearson')  # config.task.metric
_COMPRESSED = ('', '.gz', '.bz2', '.xz', '.zst')


@dataclasses.dataclass
class ClassificationTask(TextTask):
    """A label, or with `regression` a score, for a text or a pair.

    Attributes:
      data, seq_len, long, stride, bilstm_units: see TextTask. `data` may also be the file to train on.
      text_a, text_b, label: names of columns; without `text_b` there is one text.
      train, dev, test: names of files in `data` (or splits of `dataset`); '' looks for train.csv, dev.jsonl,
        valid.tsv.gz and the like. The test file may lack labels.
      dev_fraction: without a dev file, this share of the training records is dev, chosen by a hash of the text: equal
        texts are never in both splits, and adding records moves none of the others.
      labels: in the order of their numbers; () finds them in the training file and sorts them. For `f1` the second of
        two is the positive class.
      regression: the label is a number.
      metric: the figure by which the best run is chosen; '' is 'accuracy', or for scores 'spearman'.
      columns: names of the columns of files without a header.
      format: 'tsv', 'csv', 'jsonl' or 'json' where the suffix does not tell, see tables.py.
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
    metric: str = option('', one_of(('', *_METRICS, *_OF_SCORES)))
    columns: Sequence[str] = option((), each(text(empty=False)), decides='reading')
    format: str = option('auto', one_of(('auto', *dict.fromkeys(FORMATS.values()))), decides='reading')
    dataset: str = option('', decides='reading')

    def __post_init__(self):
        super().__post_init__()
        self.labels = list(self.labels)
        self.name = pathlib.PurePath(self.data).name or self.dataset or 'classification'
        self.text_columns = tuple(Column((name,)) for name in (self.text_a, self.text_b) if name)
        self._check()

    def _check(self) -> None:
        names = [name for name in (self.text_a, self.text_b, self.label) if name]
        if len(set(names)) < len(names):
            found = f'text_a={self.text_a!r}, text_b={self.text_b!r}, label={self.label!r}'
            raise UserError('config.task', found, 'different names of columns', 'name those of your table')
        if self.labels and (self.regression or len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            expected = 'nothing, for scores have no labels' if self.regression else 'two or more, all different'
            mend = 'leave it empty to find the labels in the data'
            raise UserError('config.task.labels', repr(tuple(self.labels)), expected, mend)
        allowed = _OF_SCORES if self.regression else _METRICS
        if self.metric and self.metric not in allowed:
            raise UserError('config.task.metric', repr(self.metric), 'one of ' + ', '.join(allowed), 'choose one')

    @property
    def measures(self) -> tuple[str, ...]:
        """See TextTask; `f1` needs exactly two labels."""
        names = tuple(OF_VALUES) if self.regression else ('accuracy', 'macro_f1', 'matthews')
        if len(self.labels) == 2:
            names += ('f1',)
        return tuple(dict.fromkeys((self.metric, *names))) if self.metric else names

    def learn(self, records: Sequence[Example]) -> None:
        """See TextTask; where dev is split off the training file, includes labels that only occur in dev."""
        if self._shares_dev and not self.complete:
            records_of_both = [self._example(row, 'train') for row in self._rows('train')]
            counts = Counter(record.label for record in records_of_both)
            self.labels = find_labels(counts, records_of_both)
        super().learn(records)
        if self.metric == 'f1' and len(self.labels) != 2:
            found = f"'f1' with {len(self.labels)} labels"
            raise UserError('config.task.metric', found, "'macro_f1'", 'set config.task.metric=macro_f1')

    def splits(self) -> Sequence[str]:
        """See Task."""
        found = ['train']
        if self._source('dev') or self.dev_fraction:
            found.append('dev')
        if self._source('test') and self._example(next(self._rows('test')), 'test').label is not None:
            found.append('test')
        return found

    def records(self, split: str) -> Sequence[Example]:
        """See Task."""
        if split not in _STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(_STEMS), 'choose one of them')
        shared = self._shares_dev and split != 'test'
        records = [self._example(row, split) for row in self._rows('train' if shared else split)]
        if shared:
            records = [record for record in records if held_out(record, self.dev_fraction) == (split == 'dev')]
        if not records:
            found = f'no record of {self._source("train")} in the split {split}'
            mend = 'give a dev file, or another config.task.dev_fraction'
            raise UserError('config.task.dev_fraction', found, 'records on both sides', mend)
        bare = [record.where for record in records if record.label is None]
        if bare and len(bare) < len(records):
            raise UserError(bare[0], 'no label', 'one, as other records have', 'correct or remove the record')
        return records

    @property
    def _shares_dev(self) -> bool:
        """Whether dev is split off the training file."""
        return self.dev_fraction > 0 and not self._source('dev')

    def _example(self, row: Row, split: str) -> Example:
        *texts, label = row.values
        if label is None and split != 'test':
            raise UserError(row.where, 'no label', 'a string or a number', 'correct or remove the record')
        return self.example(row.where, texts, label, '')

    def _rows(self, split: str) -> Iterator[Row]:
        source = self._source(split)
        if source is None:
            names = ', '.join(f'{stem}.csv' for stem in _STEMS[split])
            mend = f'add the file, or name it in config.task.{split}'
            raise UserError(self.data or self.dataset, f'no file of the {split} split', f'{names} …', mend)
        columns = (*self.text_columns, Column((self.label,), required=split != 'test', joined=False))
        if self.data:
            yield from read_table(source, Layout(columns, tuple(self.columns)), self.format)
        else:
            yield from read_rows(self.dataset, source, columns)

    def _source(self, split: str) -> epath.Path | str | None:
        """The file of a split, or the split's name in `dataset`; None where there is none."""
        named = {'train': self.train, 'dev': self.dev, 'test': self.test}[split]
        if not self.data:
            if not self.dataset:
                mend = 'give --config.data=FOLDER, or --config.task.dataset=NAME of tensorflow-datasets'
                raise UserError('config.data', 'nothing', 'a folder or file', mend)
            there = dataset_splits(self.dataset)
            return named or next((stem for stem in _STEMS[split] if stem in there), None)
        data = epath.Path(self.data).expanduser()
        if data.is_file():
            return data if split == 'train' else data.parent / named if named else None
        data = data_directory(self.data, 'a folder with train.csv, or a file')
        return data / named if named else self._found(data, split)

    def _found(self, folder: epath.Path, split: str) -> epath.Path | None:
        endings = [suffix + packed for suffix in FORMATS for packed in _COMPRESSED]
        names = [stem + ending for stem in _STEMS[split] for ending in endings]
        found = list(existing_files(folder, names))
        return at_most_one(found, str(folder), split, f'name the right one in config.task.{split}')


def held_out(record: Example, share: float) -> bool:
    """Whether a record belongs to a dev split of this share, by a hash of its text (case and white space ignored)."""
    text = '\0'.join(' '.join(text.casefold().split()) for text in (record.first, record.second or ''))
    digest = hashlib.blake2b(text.encode('utf-8'), digest_size=8).digest()
    return hash64(digest) < hash_threshold(share)
