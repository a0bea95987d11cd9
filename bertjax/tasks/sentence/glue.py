"""GLUE (arXiv 1804.07461): nine tasks and the diagnostic set as rows of one table."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import data_directory, existing_files
from bertjax.tasks.options import option
from bertjax.tasks.reading.sources import read_rows
from bertjax.tasks.reading.tables import Column, Layout, Row, read_table
from bertjax.tasks.sentence.task import Example, Scores, TextTask


@dataclasses.dataclass(frozen=True)
class Split:
    """Where to find a split.

    Attributes:
      files: names in the task's folder; the first that exists is read.
      tfds: (dataset, split) of tensorflow-datasets.
      server: name of the file of predictions for the server; '' for a split that the server does not evaluate.
    """

    files: tuple[str, ...]
    tfds: tuple[str, str]
    server: str = ''


@dataclasses.dataclass(frozen=True)
class GlueRow:
    """A task.

    Attributes:
      title: also the name of its folder.
      texts: for each of its one or two texts, the names of its column in the files and in tensorflow-datasets.
      label: names of the column of labels.
      labels: in the order of tensorflow-datasets; () for a regression.
      written: how the labels are written in the files, and for the server.
      measures: figures; the first is the score.
      splits: see Split.
      bare: columns of a labelled file without header.
      bare_test: columns of an unlabelled file without header.
      broken: the largest number of rows with a wrong number of columns in an official labelled file.
    """

    title: str
    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    labels: tuple[str, ...]
    written: tuple[str, ...]
    measures: tuple[str, ...]
    splits: Mapping[str, Split]
    bare: tuple[str, ...] = ()
    bare_test: tuple[str, ...] = ()
    broken: int = 0


def _splits(title: str, dataset: str) -> dict[str, Split]:
    name = f'glue/{dataset}'
    return {
        'train': Split(('train.tsv',), (name, 'train')),
        'dev': Split(('dev.tsv',), (name, 'validation')),
        'test': Split(('test.tsv',), (name, 'test'), f'{title}.tsv'),
    }


_ONE = (('sentence',),)
_TWO = (('sentence1',), ('sentence2',))
_BINARY = ('0', '1')
_ENTAILMENT = ('entailment', 'not_entailment')
_INFERENCE = ('entailment', 'neutral', 'contradiction')
_BARE_PAIR = ('index', 'sentence1', 'sentence2')
_MNLI = ('index', 'promptID', 'pairID', 'genre', 'sentence1_binary_parse', 'sentence2_binary_parse')
_MNLI += ('sentence1_parse', 'sentence2_parse', 'sentence1', 'sentence2')
_MNLI_TEXTS = (('sentence1', 'premise', 'Premise'), ('sentence2', 'hypothesis', 'Hypothesis'))
# The diagnostic set, in the folder of MNLI, or where the download script puts it, in a sibling folder.
_AX_FILES = ('diagnostic.tsv', 'AX.tsv', 'diagnostic-full.tsv')
_AX_FILES += tuple(f'../{folder}/{name}' for folder in ('diagnostic', 'AX') for name in _AX_FILES)

TASKS = {
    'cola': GlueRow(
        'CoLA', _ONE, ('label',), ('unacceptable', 'acceptable'), _BINARY, ('matthews', 'accuracy'),
        _splits('CoLA', 'cola'), ('source', 'label', 'mark', 'sentence'), ('index', 'sentence'),
    ),
    'sst2': GlueRow(
        'SST-2', _ONE, ('label',), ('negative', 'positive'), _BINARY, ('accuracy',),
        _splits('SST-2', 'sst2'), ('sentence', 'label'), ('index', 'sentence'),
    ),
    'mrpc': GlueRow(
        'MRPC', (('#1 String', 'sentence1'), ('#2 String', 'sentence2')), ('Quality', 'label'),
        ('not_equivalent', 'equivalent'), _BINARY, ('f1', 'accuracy'), _splits('MRPC', 'mrpc'),
        ('label', 'id1', 'id2', 'sentence1', 'sentence2'), ('index', 'id1', 'id2', 'sentence1', 'sentence2'),
    ),
    'stsb': GlueRow(
        'STS-B', _TWO, ('score', 'label'), (), (), ('spearman', 'pearson'), _splits('STS-B', 'stsb'),
        ('index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1', 'sentence2', 'score'),
        ('index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1', 'sentence2'),
    ),
    # The first QQP.zip has a few rows broken by line ends inside questions; transformers and tensorflow-datasets drop
    # them, too (silently).
    'qqp': GlueRow(
        'QQP', (('question1',), ('question2',)), ('is_duplicate', 'label'), ('not_duplicate', 'duplicate'), _BINARY,
        ('f1', 'accuracy'), _splits('QQP', 'qqp'),
        ('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate'), ('id', 'question1', 'question2'), 16,
    ),
    'mnli': GlueRow(
        'MNLI', _MNLI_TEXTS, ('gold_label', 'label', 'Label'), _INFERENCE, _INFERENCE, ('accuracy', 'matthews'),
        {
            'train': Split(('train.tsv',), ('glue/mnli', 'train')),
            'dev': Split(('dev_matched.tsv',), ('glue/mnli', 'validation_matched')),
            'dev_mismatched': Split(('dev_mismatched.tsv',), ('glue/mnli', 'validation_mismatched')),
            'test': Split(('test_matched.tsv',), ('glue/mnli', 'test_matched'), 'MNLI-m.tsv'),
            'test_mismatched': Split(('test_mismatched.tsv',), ('glue/mnli', 'test_mismatched'), 'MNLI-mm.tsv'),
        },
        (*_MNLI, 'label1', 'gold_label'), _MNLI,
    ),
    # The diagnostic set belongs to models of MNLI. Only diagnostic-full.tsv has labels.
    'ax': GlueRow(
        'AX', _MNLI_TEXTS, ('gold_label', 'label', 'Label'), _INFERENCE, _INFERENCE, ('matthews', 'accuracy'),
        {'ax': Split(_AX_FILES, ('glue/ax', 'test'), 'AX.tsv')}, (*_BARE_PAIR, 'label'), _BARE_PAIR,
    ),
    'qnli': GlueRow(
        'QNLI', (('question',), ('sentence',)), ('label',), _ENTAILMENT, _ENTAILMENT, ('accuracy',),
        _splits('QNLI', 'qnli'), ('index', 'question', 'sentence', 'label'), ('index', 'question', 'sentence'),
    ),
    'rte': GlueRow(
        'RTE', _TWO, ('label',), _ENTAILMENT, _ENTAILMENT, ('accuracy',), _splits('RTE', 'rte'),
        (*_BARE_PAIR, 'label'), _BARE_PAIR,
    ),
    'wnli': GlueRow(
        'WNLI', _TWO, ('label',), ('not_entailment', 'entailment'), _BINARY, ('accuracy',), _splits('WNLI', 'wnli'),
        (*_BARE_PAIR, 'label'), _BARE_PAIR,
    ),
}  # fmt: skip
_INDEX = Column(('index', 'id', 'idx'), required=False)


@dataclasses.dataclass
class GlueTask(TextTask):
    """A task of GLUE.

    The splits of MNLI are train, dev, dev_mismatched, test, test_mismatched and ax, the diagnostic set.

    Attributes:
      data: the folder of its files as GLUE's download script wrote them, or the folder of all tasks' folders.
      task: a name in TASKS, such as 'rte'; 'RTE' and 'STS-B' are accepted.
      seq_len, long, stride, bilstm_units: see TextTask.
    """

    task: str = option('rte', named=True)

    def __post_init__(self):
        super().__post_init__()
        name = self.task.lower().replace('-', '').replace('_', '')
        trained = [name for name in TASKS if name != 'ax']
        if name == 'ax':
            mend = 'train mnli, then --config.run=predict --config.split=ax'
            raise UserError('config.task.task', repr(self.task), 'a task with a train split', mend)
        if name not in TASKS:
            raise UserError('config.task.task', repr(self.task), 'one of ' + ', '.join(trained), 'choose one of them')
        self.row = TASKS[name]
        self.name = self.row.title
        self.regression = not self.row.labels
        self.labels = list(self.row.labels)
        self.measures = self.row.measures
        self.text_columns = tuple(map(Column, self.row.texts))
        self._rows = {split: self.row for split in self.row.splits}
        if name == 'mnli':
            self._rows['ax'] = TASKS['ax']

    def splits(self) -> Sequence[str]:
        """See Task."""
        judged = [split for split, row in self._rows.items() if row.splits[split].server]
        plain = [split for split in self._rows if split not in judged]
        if not self.data:
            return plain
        found = [split for split in plain if self._file(split)]
        return found + [
            split for split in judged if self._file(split) and next(self._read(split)).values[-2] is not None
        ]

    def records(self, split: str) -> Sequence[Example]:
        """See Task."""
        if split not in self._rows:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(self._rows), 'choose one of them')
        records = [self._example(row, split, number) for number, row in enumerate(self._read(split))]
        if self._rows[split].splits[split].server:
            seen: dict[str, str] = {}
            for record in records:
                first = seen.setdefault(record.index, record.where)
                if first is not record.where:
                    expected = 'every index once, as the server does'
                    raise UserError(record.where, f'the index {record.index} of {first}', expected, 'mend the file')
        return records

    def _example(self, row: Row, split: str, number: int) -> Example:
        *texts, label, index = row.values
        server = self._rows[split].splits[split].server
        if server and index is not None and not index.isdecimal():
            mend = 'mend the row, or the names of the columns'
            raise UserError(row.where, f'the index {index[:40]!r}', 'a whole number', mend)
        if label is None and not server:
            raise UserError(row.where, 'no label', 'one', 'mend or remove the row')
        if label is not None and label.strip() and self.row.labels:
            label = self._named(label.strip(), row.where)
        record = self.example(row.where, texts, label, str(number) if index is None else index)
        if self.regression and record.label is not None and not 0 <= record.label <= 5:
            raise UserError(row.where, f'the score {label}', '0 to 5', 'mend or remove the row')
        return record

    def _named(self, written: str, where: str) -> str:
        """The label that is written like this in the files (tensorflow-datasets has the labels' own names)."""
        if written in self.row.labels:
            return written
        if written not in self.row.written:
            known = ', '.join(self.row.written)
            raise UserError(where, f'the label {written!r}', f'one of {known}', 'mend the record')
        return self.row.labels[self.row.written.index(written)]

    def _read(self, split: str) -> Iterator[Row]:
        """Rows of the texts, the label, and the index."""
        row = self._rows[split]
        place = row.splits[split]
        columns = (*map(Column, row.texts), Column(row.label, required=not place.server), _INDEX)
        if not self.data:
            if place.server:  # STS-B has -1 in place of the secret scores
                columns = (*columns[:-2], Column((), required=False), _INDEX)
            yield from read_rows(*place.tfds, columns)
            return
        path = self._file(split)
        if path is None:
            found = f'no {" or ".join(place.files[:3])} for the split {split}'
            mend = (
                "give the folder that GLUE's download script wrote, or leave config.data empty for tensorflow-datasets"
            )
            raise UserError(str(self._folder()), found, "the task's files", mend)
        # The server needs an answer for every row.
        bare, broken = (row.bare_test, 0) if place.server else (row.bare, row.broken)
        yield from read_table(path, Layout(columns, bare, broken), 'tsv')

    def _folder(self) -> epath.Path:
        data = data_directory(self.data, f'a folder with the files of {self.name}')
        return data / self.name if (data / self.name).is_dir() else data

    def _file(self, split: str) -> epath.Path | None:
        return next(existing_files(self._folder(), self._rows[split].splits[split].files), None)

    def official_files(self, split: str, records: Sequence[Example], predictions: Sequence[Scores]) -> dict[str, str]:
        """The server's file of a split that it evaluates: index and prediction, labels as in the task's files."""
        if split not in self._rows or not self._rows[split].splits[split].server or not records[0].index:
            return {}
        lines = ['index\tprediction\n']
        # tensorflow-datasets has the records in another order than the server.
        for record, prediction in sorted(zip(records, predictions, strict=True), key=lambda pair: int(pair[0].index)):
            if self.regression:
                answer = f'{min(max(prediction.value, 0.0), 5.0):.3f}'
            else:
                answer = self.row.written[prediction.best]
            lines.append(f'{record.index}\t{answer}\n')
        return {self._rows[split].splits[split].server: ''.join(lines)}
