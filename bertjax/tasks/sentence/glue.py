"""GLUE (arXiv 1804.07461): nine tasks and the diagnostic set."""

import dataclasses
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax.config.ranges import text
from bertjax.errors import UserError
from bertjax.files.paths import existing_files
from bertjax.remote.paths import data_directory
from bertjax.tasks.options import option
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import Files, Row, read_rows, select_columns
from bertjax.tasks.reading.sources import dataset_splits, read_dataset
from bertjax.tasks.reading.splits import split_files
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.tasks.sentence.task import Example, Scores, TextTask

_INDEX = Column(('index', 'id', 'idx'), required=False)


@dataclasses.dataclass
class GlueTask(TextTask):
    """A task of the GLUE benchmark.

    The splits of MNLI are train, dev, dev_mismatched, test, test_mismatched and ax, the diagnostic set.

    Attributes:
      data: the folder of the task's files as GLUE's download script wrote them, or the parent of all these folders.
      task: a name in glue_table.py, such as 'rte'; 'RTE' and 'STS-B' are accepted.
      seq_len, long, stride, bilstm_units: see TextTask.
    """

    task: str = option('rte', text(empty=False), named=True)

    def __post_init__(self):
        super().__post_init__()
        name = self.task.lower().replace('-', '').replace('_', '')
        trained = [name for name in TASKS if name != 'ax']
        if name == 'ax':
            fix = 'train mnli, then --config.run=predict --config.split=ax'
            raise UserError('config.task.task', repr(self.task), 'a task with a train split', fix)
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
        served = [split for split, row in self._rows.items() if row.splits[split].server]
        labelled = [split for split in self._rows if split not in served]
        if not self.data:
            return labelled
        existing = [split for split in labelled if self._find(split)[0]]
        return existing + [
            split for split in served if self._find(split)[0] and next(self._read(split)).values[-2] is not None
        ]

    def describe_missing(self) -> str:
        """Describes the missing files of the task, or its missing dataset; '' if train and dev exist."""
        if not self.data:
            try:
                dataset_splits(self.row.splits['train'].tfds[0])
            except UserError as error:
                return f'{self.row.splits["train"].tfds[0]}: {error.found}'
            return ''
        folder = data_directory(self.data, "a folder of all tasks' folders") / self.name
        if not folder.is_dir():
            return f'no {folder}'
        missing = [self.row.splits[split].files[0] for split in ('train', 'dev') if not self._find(split)[0]]
        return f'no {" and no ".join(missing)} in {folder}' if missing else ''

    def server_splits(self) -> list[str]:
        """Returns the existing splits that the server evaluates."""
        served = [split for split, row in self._rows.items() if row.splits[split].server]
        return [split for split in served if not self.data or self._find(split)[0]]

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
                    raise UserError(record.where, f'the index {record.index} of {first}', expected, 'correct the file')
        return records

    def _example(self, row: Row, split: str, number: int) -> Example:
        *texts, label, index = row.values
        server = self._rows[split].splits[split].server
        if server and index is not None and not index.isdecimal():
            fix = 'correct the row, or the names of the columns'
            raise UserError(row.where, f'the index {index[:40]!r}', 'a whole number', fix)
        if label is None and not server:
            raise UserError(row.where, 'no label', 'one', 'correct or remove the row')
        if label is not None and label.strip() and self.row.labels:
            label = self._named(label.strip(), row.where)
        record = self.example(row.where, texts, label, str(number) if index is None else index)
        if self.regression and record.label is not None and not 0 <= record.label <= 5:
            raise UserError(row.where, f'the score {label}', '0 to 5', 'correct or remove the row')
        return record

    def _named(self, written: str, where: str) -> str:
        """Returns the label for its form in the files (tensorflow-datasets has the names of the labels)."""
        if written in self.row.labels:
            return written
        if written not in self.row.written:
            known = ', '.join(self.row.written)
            raise UserError(where, f'the label {written!r}', f'one of {known}', 'correct the record')
        return self.row.labels[self.row.written.index(written)]

    def _read(self, split: str) -> Iterator[Row]:
        """Yields rows of the texts, the label and the index."""
        row = self._rows[split]
        source = row.splits[split]
        columns = (*map(Column, row.texts), Column(row.label, required=not source.server), _INDEX)
        files, official = self._find(split) if self.data else ((), False)
        if source.server and not official:  # other files have -1 in place of secret labels and scores
            columns = (*columns[:-2], Column((), required=False), _INDEX)
        if not self.data:
            yield from select_columns(read_dataset(*source.tfds), columns)
            return
        if not files:
            found = f'no {" or ".join(source.files[:3])} for the split {split}'
            fix = (
                "give the folder that GLUE's download script wrote, or leave config.data empty for tensorflow-datasets"
            )
            raise UserError(str(self._folder()), found, "the task's files", fix)
        # The server needs an answer for every row.
        bare, broken = (row.bare_test, 0) if source.server else (row.bare, row.broken)
        yield from read_rows(files, TableLayout(columns, bare, broken), 'tsv')

    def _folder(self) -> epath.Path:
        data = data_directory(self.data, f'a folder with the files of {self.name}')
        return data / self.name if (data / self.name).is_dir() else data

    def _find(self, split: str) -> tuple[Files, bool]:
        """Returns the files of a split, and whether they are the official ones.

        Without an official file these are the files of the Hugging Face Hub, if any, where the splits have the names of
        tensorflow-datasets.
        """
        source, folder = self._rows[split].splits[split], self._folder()
        official = next(existing_files(folder, source.files), None)
        if official:
            return (official,), True
        return split_files(folder, split, stems=(source.tfds[1],), suffixes=('.parquet', '.arrow')), False

    def official_files(self, split: str, records: Sequence[Example], predictions: Sequence[Scores]) -> dict[str, str]:
        """Returns the file of a split that the server evaluates: index and prediction, with labels as in the files."""
        if split not in self._rows or not self._rows[split].splits[split].server or not records[0].index:
            return {}
        lines = ['index\tprediction\n']
        # The order of the records in tensorflow-datasets is not the order of the server.
        for record, prediction in sorted(zip(records, predictions, strict=True), key=lambda pair: int(pair[0].index)):
            if self.regression:
                answer = f'{min(max(prediction.value, 0.0), 5.0):.3f}'
            else:
                answer = self.row.written[prediction.best]
            lines.append(f'{record.index}\t{answer}\n')
        return {self._rows[split].splits[split].server: ''.join(lines)}
