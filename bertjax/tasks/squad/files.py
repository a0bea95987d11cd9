"""The files of SQuAD's splits, in its own layout or with a row a question; or tensorflow-datasets."""

import io
import json
from collections.abc import Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.paths import existing_files
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.records import FORMATS, NESTED, Files, read_records
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.splits import STEMS, describe_splits, split_files
from bertjax.tasks.reading.texts import quoted, read_text
from bertjax.tasks.squad.questions import (
    PlacedQuestion,
    SquadQuestion,
    checked_questions,
    questions_in_layout,
    questions_of_rows,
)

_PREPARED = {'train': 'train', 'dev': 'validation'}  # splits in tensorflow-datasets


class SquadFiles:
    """The splits of a folder, or of tensorflow-datasets.

    Args:
      data: the folder; '' for tensorflow-datasets.
      version: '1.1' or '2.0'.
      names: of the files, by split; '' for the official ones, or else those with the usual names.
    """

    def __init__(self, data: str, version: str, names: Mapping[str, str]):
        self._data, self._version, self._names = data, version, names
        self._folder = user_path(data, 'config.data')

    def splits(self) -> list[str]:
        """The labelled splits."""
        if not self.find('test'):
            return ['train', 'dev']
        labelled = all(question.answers is not None for question in self.read('test'))
        return ['train', 'dev', 'test'] if labelled else ['train', 'dev']

    def find(self, split: str) -> Files:
        """The files of a split; none where there are none.

        Raises:
          UserError: several, or none of the name that is given.
        """
        name, usual = self._names[split], f'{split}-v{self._version}.json'
        if not self._data and not name:
            return ()
        found = next(existing_files(self._folder, [name] if name else [usual, f'{usual}.gz']), None)
        if found:
            return (found,)
        if name:
            several = [part.strip() for part in name.split(',')]
            parts = tuple(existing_files(self._folder, several))
            if len(parts) < len(several) or len(set(parts)) < len(parts):
                raise self._nothing(split)
            return parts
        fix = f'name the right one in config.task.{split}_file'
        return split_files(self._folder, split, suffixes=NESTED, fix=fix) if self._folder.is_dir() else ()

    def _nothing(self, split: str) -> UserError:
        folder = self._folder
        there = quoted(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else 'no such folder'
        usual = f'{split}-v{self._version}.json'
        return UserError(
            str(folder), 'an empty folder' if there == 'none' else there,
            self._names[split] or f'{usual} or {usual}.gz, or {split}.json, {split}.jsonl …',
            f'check config.data and config.task.{split}_file, or fetch the file from SQuAD-explorer',
        )  # fmt: skip

    def describe(self) -> str:
        """Which files are which splits."""
        if not self._data:
            return ''
        found = {split: self.find(split) for split in STEMS}
        folder = self._folder if self._folder.is_dir() else None
        return describe_splits(found, folder, judged=self.splits(), lacking='answers')

    def read(self, split: str) -> list[SquadQuestion]:
        """The questions of a split, in order.

        Raises:
          UserError: no such split or file; damaged, not UTF-8, or of another form.
        """
        files = self.find(split) if split in STEMS else ()
        if split not in STEMS or (split == 'test' and not files):
            expected = 'train or dev' if split in STEMS else 'train, dev or test'
            raise UserError('config.split', repr(split), expected, 'name a file for it with config.task.test_file')
        if not self._data and not files:
            return prepared_questions(self._version, _PREPARED[split])
        if not files:
            raise self._nothing(split)
        return read_questions(
            files, answerable=self._version == '1.1', labels='optional' if split == 'test' else 'needed'
        )


def read_questions(files: Files, *, answerable: bool, labels: str) -> list[SquadQuestion]:
    """The questions of the files of a split; for the arguments see questions.py:checked_questions.

    Raises:
      UserError: no such file, damaged, not UTF-8, or of another form.
    """
    placed = [question for path in files for question in _placed(epath.Path(path), labels)]
    return checked_questions(placed, answerable=answerable, labels=labels)


def _placed(path: epath.Path, labels: str) -> list[PlacedQuestion]:
    format = FORMATS.get(streams.bare_suffix(path.name), 'json')
    if path.is_file() and format == 'json':
        format = _rows_of(path)
        if not format:
            return questions_in_layout(read_text(path), str(path), labels)
    return questions_of_rows(read_records([path], format), labels)


def _rows_of(path: epath.Path) -> str:
    """How the rows of a .json file stand there, by its beginning: 'jsonl', a row a line, as `datasets` and pandas write
    them, or 'json', a list; '' where it has none."""
    try:
        with path.open('rb') as file:
            whole = io.BufferedReader(streams.CountedFile(file), streams.CHUNK)
            head = next(streams.chunks(whole, streams.compression_of(str(path), whole.peek(8)[:8])), b'')
    except streams.DAMAGE:
        return ''  # said where it is read
    line, _, more = head.lstrip(b'\xef\xbb\xbf \r\n\t').partition(b'\n')
    if line.startswith(b'['):
        return 'json'
    try:
        first = json.loads(line)
        return 'jsonl' if 'data' not in first and (more.strip() or 'context' in first) else ''
    except (ValueError, TypeError):
        return ''


def prepared_questions(version: str, split: str) -> list[SquadQuestion]:
    """The questions of tensorflow-datasets' squad/v1.1 or squad/v2.0, prepared on this machine.

    Args:
      version: '1.1' or '2.0'.
      split: 'train' or 'validation'.

    Raises:
      UserError: it is not prepared.
    """
    return [
        SquadQuestion(
            row['id'], row['question'], row['context'], tuple(answers['text']), tuple(answers['answer_start'])
        )
        for _, row in read_dataset(f'squad/v{version}', split)
        for answers in [row['answers']]
    ]
