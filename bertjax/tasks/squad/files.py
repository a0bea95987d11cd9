"""Reads the splits of SQuAD from SQuAD's JSON, from rows with one question each, or from tensorflow-datasets."""

import contextlib
import io
import os
import re
from collections.abc import Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.paths import existing_files
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.records import FORMATS, NESTED, Files, parse_records, read_records
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.splits import STEMS, SplitFiles, check_split, split_files
from bertjax.tasks.reading.texts import number_lines, quote_names, read_text
from bertjax.tasks.squad.questions import SquadQuestion, check_questions, has_rows, parse_question_row, parse_squad_json


class SquadFiles(SplitFiles):
    """The splits of SQuAD in a folder, or in tensorflow-datasets.

    Args:
      data: The folder; '' for tensorflow-datasets.
      version: '1.1' or '2.0'.
      names: {split: the names of its files, separated by commas}; '' for the official file or, if it does not exist,
        for a file with a usual name, see splits.py.
    """

    missing = 'answers'

    def __init__(self, data: str, version: str, names: Mapping[str, str]):
        super().__init__(data, self._have_answers, NESTED)
        self._version, self._names, self._folder = version, names, user_path(data, 'config.data')

    def _have_answers(self) -> bool:
        return self.records('test')[0].answers is not None  # `check_questions` refuses a mix

    def splits(self) -> list[str]:
        """Returns the names of the labeled splits; without `data`, 'train' and 'dev' always count."""
        prepared = () if self._data else ('train', 'dev')
        return [split for split in STEMS if split in prepared or (self.find(split) and self.is_labeled(split))]

    def find(self, split: str) -> Files:
        """Returns the files of a split, or () if there are none.

        Raises:
          UserError: As in `split_files`, or a file in `names` does not exist or is listed twice.
        """
        if self._names[split]:
            names = [name.strip() for name in self._names[split].split(',')]
            files = tuple(existing_files(self._folder, names))
            if len(set(files)) < len(names):
                raise self._no_file_error(split)
            return files
        if not self._data or not self._folder.is_dir():
            return ()
        fix = f'name the right one in config.task.{split}_file'
        official = official_file(self._folder, split, self._version)
        return official or split_files(self._folder, split, suffixes=NESTED, fix=fix)

    def _no_file_error(self, split: str) -> UserError:
        folder = self._folder
        if folder.is_file():
            parent, name = os.path.split(self._data.rstrip('/'))  # not of `folder`, which may be a copy of an object
            fix = f'give {parent or "."}, with config.task.{split}_file={name}'
            return UserError('config.data', f'the file {self._data}', 'its folder', fix)
        names = sorted(path.name for path in folder.glob('[!.]*')) if folder.is_dir() else None
        found = 'no such folder' if names is None else quote_names(names) if names else 'an empty folder'
        usual = f'{split}-v{self._version}.json'
        expected = self._names[split] or f'{usual} or {usual}.gz, or {split}.json, {split}.jsonl …'
        fix = f'check config.data and config.task.{split}_file, or download the file from SQuAD-explorer'
        return UserError(self._data or str(folder), found, expected, fix)

    def records(self, split: str) -> list[SquadQuestion]:
        """Reads the questions of a split, in order."""
        check_split(split)
        files = self.find(split)
        if not self._data and not files:
            rows = read_dataset(f'squad/v{self._version}', {'dev': 'validation'}.get(split, split))
            return [parse_question_row(row, at) for at, row in rows]
        if not files:
            raise self._no_file_error(split)
        return read_questions(files, answerable=self._version == '1.1', needed=split != 'test')


def official_file(folder: epath.Path, split: str, *versions: str) -> Files:
    """Returns the file with SQuAD's own name for a split, such as dev-v1.1.json, or () if there is no such file."""
    names = [f'{split}-v{version}.json{suffix}' for version in versions for suffix in ('', '.gz')]
    return tuple(existing_files(folder, names))[:1]


def read_questions(files: Files, *, answerable: bool, needed: bool) -> list[SquadQuestion]:
    """Reads the questions of a split from its `files`. For the other arguments, see questions.py:check_questions."""
    questions = (question for path in files for question in _read_file(path))
    return check_questions(questions, answerable=answerable, needed=needed)


def _read_file(path: epath.Path) -> list[SquadQuestion]:
    format = FORMATS.get(streams.bare_suffix(path.name), 'json')
    rows = read_records([path], format)
    if path.is_file() and format == 'json':
        text = read_text(path)
        if not has_rows(text.lstrip().partition('\n')[0]):
            return parse_squad_json(text, str(path))
        rows = parse_records(number_lines(text), str(path), 'jsonl')  # JSON lines or a list
    return [parse_question_row(row, at) for at, row in rows]


def is_squad_json(path: epath.Path) -> bool:
    """Whether a file looks like SQuAD's JSON: its suffix is .json, and its beginning has the key "paragraphs"."""
    if streams.bare_suffix(path.name) != '.json' or not path.is_file():
        return False
    with contextlib.suppress(*streams.DAMAGE), path.open('rb') as file:
        reader = io.BufferedReader(streams.CountedFile(file), streams.CHUNK)
        chunks = streams.chunks(reader, streams.detect_compression(str(path), reader.peek(8)[:8]))
        return re.search(rb'"paragraphs"\s*:', next(chunks, b'')) is not None
    return False
