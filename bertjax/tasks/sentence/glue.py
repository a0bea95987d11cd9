"""GLUE (arXiv 1804.07461): nine tasks and the diagnostic set."""

import dataclasses
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax.config.ranges import Range
from bertjax.errors import UserError
from bertjax.files.paths import existing_files
from bertjax.remote.paths import data_directory
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import Files, Row, read_rows
from bertjax.tasks.reading.sources import DatasetSplit, dataset_splits
from bertjax.tasks.reading.splits import STEMS, split_files
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.tasks.sentence.task import Example, Logits, TextTask
from bertjax.tasks.task import check_all_or_none, option

_INDEX = Column(('index', 'id', 'idx'), required=False)
_HUB_FORMATS = ('.jsonl', '.parquet', '.arrow')


def _normalize(name: str) -> str:
    return name.lower().replace('-', '').replace('_', '')


def _describe_missing_dataset(name: str) -> str:
    """Returns why a dataset of tensorflow-datasets cannot be read; '' if it can."""
    try:
        dataset_splits(name)
    except UserError as error:
        return f'{name}: {error.found}'
    return ''


# Spellings such as 'STS-B' are also accepted. 'all' and several tasks are for run=benchmark, which checks each name.
_NAMES = Range(
    f'one of {", ".join(TASKS)}, all, or several names separated by commas',
    lambda value: isinstance(value, str) and (',' in value or _normalize(value) in (*TASKS, 'ax', 'all')),
)


@dataclasses.dataclass
class GlueTask(TextTask):
    """A task of the GLUE benchmark.

    MNLI has the splits train, dev, dev_mismatched, test, test_mismatched, and ax, which is the diagnostic set.

    Attributes:
      data: the task's folder in the output of GLUE's download script, or the parent folder of all tasks; '' for
        tensorflow-datasets.
      task: the GLUE task.
      seq_len, long, stride, bilstm_units: see TextTask.
    """

    task: str = option('rte', _NAMES, named=True)

    def __post_init__(self):
        super().__post_init__()
        name = _normalize(self.task)
        if name == 'ax':
            fix = 'train mnli, then use --config.run=predict --config.split=ax'
            raise UserError('config.task.task', repr(self.task), 'a task with a train split', fix)
        if name not in TASKS:
            raise UserError('config.task.task', repr(self.task), 'one of ' + ', '.join(TASKS), 'choose one of them')
        self.row = TASKS[name]
        self.name = self.row.title
        self.regression = not self.row.labels
        self.labels = list(self.row.labels)
        # In a file, a label is an index (as in JSON lines of the Hugging Face Hub), an official text or a name.
        forms = map(str, range(len(self.labels))), self.row.file_labels, self.labels
        self._label_names = {text: name for texts in forms for text, name in zip(texts, self.labels, strict=True)}
        self.measures = self.row.measures
        self.text_columns = tuple(map(Column, self.row.texts))

    def splits(self) -> Sequence[str]:
        names = [split for split, source in self.row.splits.items() if not source.server and self._find(split)[0]]
        return names + list(filter(self._is_labeled, self.server_splits())) if self.data else names

    def _is_labeled(self, split: str) -> bool:
        # Without a column of labels, as in the official test files, one row is enough, because a cell is never None.
        return next(self._read(split)).values[-2] is not None and self.records(split)[0].label is not None

    def describe_missing(self) -> str:
        """Describes the missing files of train and dev, or the missing dataset; '' if nothing is missing."""
        if not self.data:
            return _describe_missing_dataset(self.row.splits['train'].tfds[0])
        parent = data_directory(self.data, 'the parent folder of all tasks')
        folder = self._task_folder(parent)
        if folder is None:
            return f'no {parent / self.name}'
        missing = [self.row.splits[split].files[0] for split in ('train', 'dev') if not self._find(split)[0]]
        return f'no {" and no ".join(missing)} in {folder}' if missing else ''

    def server_splits(self) -> list[str]:
        """Returns the existing splits that the GLUE server evaluates."""
        sources = {split: source for split, source in self.row.splits.items() if source.server}
        if not self.data:  # tensorflow-datasets prepares the diagnostic set separately from MNLI
            return [split for split, source in sources.items() if not _describe_missing_dataset(source.tfds[0])]
        return [split for split in sources if self._find(split)[0]]

    def records(self, split: str) -> Sequence[Example]:
        if split not in self.row.splits:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(self.row.splits), 'choose one of them')
        records = [self._example(row, split, str(number)) for number, row in enumerate(self._read(split))]
        if self.row.splits[split].server:
            check_all_or_none(records)
            seen: dict[str, str] = {}
            for record in records:
                first = seen.setdefault(record.index, record.where)
                if first is not record.where:
                    expected = 'a different index in every row, as the server requires'
                    raise UserError(record.where, f'the index {record.index} of {first}', expected, 'correct the file')
        return records

    def _example(self, row: Row, split: str, number: str) -> Example:
        *texts, label, index = row.values
        server = self.row.splits[split].server
        if server and label is not None and label.strip() in ('-1', '-1.0'):  # an unpublished label or score
            label = None
        if server and index is not None and not index.isdecimal():
            fix = 'correct the row, or the column names'
            raise UserError(row.where, f'the index {index[:40]!r}', 'a whole number', fix)
        if label is None and not server:
            raise UserError(row.where, 'no label', 'a label', 'correct or remove the row')
        if label is not None and label.strip() and self.labels:
            label = label.strip()
            if label not in self._label_names:
                expected = f'one of {", ".join(self.row.file_labels)}'
                raise UserError(row.where, f'the label {label!r}', expected, 'correct the record')
            label = self._label_names[label]
        record = self.example(Row(row.where, tuple(texts)), label, number if index is None else index)
        if self.regression and record.label is not None and not 0 <= record.label <= 5:
            raise UserError(row.where, f'the score {label}', '0 to 5', 'correct or remove the row')
        return record

    def _read(self, split: str) -> Iterator[Row]:
        """Yields the rows of a split. The values of a row are its texts, its label and its index, in this order."""
        source, (files, official) = self.row.splits[split], self._find(split)
        label = self.row.label if official or not source.server else ()  # only official files can have test labels
        columns = (*self.text_columns, Column(label, required=not source.server), _INDEX)
        if not files:
            found = f'no {" or ".join(source.files[:3])} for the split {split}'
            fix = "give the output folder of GLUE's download script, or leave config.data empty for tensorflow-datasets"
            raise UserError(str(self._folder()), found, "the task's files", fix)
        # The server needs a prediction for every row, so no row may be dropped.
        layout = TableLayout(columns, source.headerless_columns, 0 if source.server else self.row.max_broken_rows)
        return read_rows(files, layout, 'tsv' if official else '')

    def _folder(self) -> epath.Path:
        data = data_directory(self.data, f'a folder with the files of {self.name}')
        return self._task_folder(data) or data

    def _task_folder(self, parent: epath.Path) -> epath.Path | None:
        """Returns the folder of the task, such as STS-B, or stsb as on the Hugging Face Hub; None if there is none."""
        return next((path for name in (self.name, _normalize(self.name)) if (path := parent / name).is_dir()), None)

    def _find(self, split: str) -> tuple[Files, bool]:
        """Returns the files of a split, or () if there are none, and whether they are official files.

        Other files are Parquet, Arrow or JSON lines with the columns of tensorflow-datasets, as on the Hugging Face
        Hub. They have a usual name of the split or, as validation_matched, of the official file. A clone of the Hub's
        repository has the diagnostic set in the sibling folder `ax`.
        """
        source = self.row.splits[split]
        if not self.data:
            return (DatasetSplit(*source.tfds),), False
        folder = self._folder()
        official = next(existing_files(folder, source.files), None)
        if official:
            return (official,), True
        name, *suffix = source.files[0].partition('.')[0].split('_')  # dev_matched.tsv gives 'dev' and ['matched']
        stems = *STEMS.get(split, (split,)), *('_'.join((stem, *suffix)) for stem in STEMS.get(name, (name,)))
        files = split_files(folder, split, stems=stems, suffixes=_HUB_FORMATS)
        if split == 'ax' and not files and (beside := folder / '../ax').is_dir():
            files = split_files(beside, split, stems=('ax', 'test'), suffixes=_HUB_FORMATS)
        return files, False

    def official_files(self, split: str, records: Sequence[Example], predictions: Logits) -> dict[str, str]:
        """Returns the file of predictions for GLUE's server; {} if the server does not evaluate the split."""
        source = self.row.splits.get(split)
        if not source or not source.server or not records[0].index:
            return {}
        lines = ['index\tprediction\n']
        # The server expects the records in the order of their indices, which tensorflow-datasets does not preserve.
        for record, logits in sorted(zip(records, predictions, strict=True), key=lambda pair: int(pair[0].index)):
            if self.regression:
                answer = f'{min(max(logits[0], 0.0), 5.0):.3f}'
            else:
                answer = self.row.file_labels[logits.argmax()]
            lines.append(f'{record.index}\t{answer}\n')
        return {source.server: ''.join(lines)}
