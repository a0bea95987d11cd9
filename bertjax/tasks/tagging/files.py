"""Sentences to tag: from the files of a split, tensorflow-datasets, or a user's own file."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import at_most_one
from bertjax.files.streams import named_compressed
from bertjax.remote.paths import data_directory, user_path
from bertjax.tasks.reading.json_rows import is_object
from bertjax.tasks.reading.records import NESTED, Files, parse_records, read_records
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.splits import STEMS, describe_splits, split_files
from bertjax.tasks.reading.texts import Blank, Line, peeked, read_lines, read_text
from bertjax.tasks.tagging.blocks import is_boundary, read_blocks, split_columns
from bertjax.tasks.tagging.columns import ColumnOptions, Sentence, in_iob2, read_columns, stream_columns
from bertjax.tasks.tagging.raw_text import split_words
from bertjax.tasks.tagging.rows import TagFields, sentences_of

DATASET = 'conll2003'  # of tensorflow-datasets
INPUTS = ('auto', 'columns', 'text', 'words', 'jsonl')
_MORE = {'train': (), 'dev': ('testa',), 'test': ('testb',)}  # names of CoNLL-2003
_SUFFIXES = ('.txt', '.tsv', '.conll', '.conllu', '.iob', '.iob2', '.bio', '.bioes')


class TaggedFiles:
    """The splits of a folder, or of tensorflow-datasets.

    Args:
      data: the folder of column files, such as dev.txt, valid.conll, eng.testa, or else of JSON or Arrow files, such as
        dev.jsonl or test-00000-of-00001.parquet; '' for tensorflow-datasets.
      options: of column files.
      fields: of the others.
    """

    def __init__(self, data: str, options: ColumnOptions, fields: TagFields):
        self._data, self._options, self._fields = data, options, fields

    def splits(self) -> list[str]:
        """The splits among train, dev and test that exist and have tags."""
        if not self._data:
            return list(STEMS)
        return [split for split in STEMS if self.find(split) and (split != 'test' or self._test_has_tags())]

    def find(self, split: str) -> Files:
        """The files of a split; none where there are none.

        Raises:
          UserError: several, or no such folder.
        """
        folder = data_directory(self._data, 'a folder with train.txt, dev.txt …')
        found = sorted(path for path in folder.iterdir() if _is_of(path, split))
        columns = at_most_one(found, str(folder), split, 'move the others away')
        return (columns,) if columns else split_files(folder, split, suffixes=NESTED)

    def describe(self) -> str:
        """Which files are which splits."""
        if not self._data:
            return ''
        found = {split: self.find(split) for split in STEMS}
        folder = user_path(self._data, 'config.data')
        return describe_splits(found, folder, judged=self.splits(), lacking='tags')

    def read(self, split: str) -> list[Sentence]:
        """The sentences of a split in file order.

        Raises:
          UserError: no such split or file, or a malformed line or record.
        """
        if split not in STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')
        if not self._data:
            rows = _filled(sentences_of(read_dataset(DATASET, split), TagFields(), tagged=True))
            return _rows_in_iob2(rows, DATASET, self._options)
        files = self.find(split)
        if not files:
            names = ' or '.join(f'{name}.txt' for name in STEMS[split])
            raise UserError(self._data, f'no file of the {split} split', names, 'add it, or name another folder')
        tagged = split != 'test' or self._test_has_tags()
        if _has_columns(files):
            return read_columns(read_text(files[0]), str(files[0]), self._options, tagged=tagged)
        rows = _filled(sentences_of(read_records(files), self._fields, tagged=tagged))
        return _rows_in_iob2(rows, str(files[0]), self._options) if tagged else rows

    def _test_has_tags(self) -> bool:
        """Whether there is a test file, and it does not lack the training file's column, or field, of tags."""
        test, train = self.find('test'), self.find('train')
        if not test:
            return False
        if not _has_columns(test):
            return self._fields.tags_of(next(read_records(test)).fields) is not None
        width = _width(test[0], self._options)
        return width > 1 and not (train and _has_columns(train) and width == _width(train[0], self._options) - 1)


def _is_of(path: epath.Path, split: str) -> bool:
    """Whether it is named as the column file of this split."""
    name = path.name.removesuffix(path.suffix) if named_compressed(path.name) else path.name
    stem, dot, suffix = name.rpartition('.')
    names = (*STEMS[split], *_MORE[split])
    if path.is_dir():
        return False
    return stem in names if dot + suffix in _SUFFIXES else (suffix if dot else name) in names


def _has_columns(files: Files) -> bool:
    return any(_is_of(files[0], split) for split in STEMS)


def _width(path: epath.Path, options: ColumnOptions) -> int:
    """Number of columns of the first word."""
    blocks = read_blocks(read_lines(path), str(path), options.comment)
    return next((len(block.rows[0][1]) for block in blocks), 0)


def _filled(rows: Iterable[Sentence | Blank]) -> list[Sentence]:
    """The sentences; records without words are left out and counted."""
    rows = list(rows)
    blank = [row.where for row in rows if isinstance(row, Blank)]
    if blank:
        print(f'{len(blank):,} records without words left out, the first at {blank[0]}')
    return [row for row in rows if isinstance(row, Sentence)]


def _rows_in_iob2(sentences: Sequence[Sentence], where: str, options: ColumnOptions) -> list[Sentence]:
    return in_iob2(sentences, [[sentence.where] * len(sentence.words) for sentence in sentences], where, options)


def read_input(
    lines: Iterable[Line], where: str, options: ColumnOptions, format: str, labels: Collection[str], fields: TagFields
) -> Iterator[Sentence | Blank]:
    """A user's own file without tags, or with tags to be ignored; each sentence as soon as its lines are there.

    Args:
      lines: of the file.
      where: its name.
      options: of a column file.
      format: 'columns', 'text', 'words', 'jsonl', or 'auto': JSON lines if the first line is an object; columns if it
        has tabs or is -DOCSTART-, if all lines have the same number of columns and at least half of them a known tag,
        or if there are several lines, all single words. Of a stream, the first two lines stand for all.
      labels: the known tags.
      fields: of JSON lines.

    Raises:
      UserError: no words, or a malformed line.
    """
    if format == 'auto':
        lines, format = _recognised(lines, options, labels)
        blanks = "with config.task.input_format='words' blanks alone separate words"
        names = {'columns': 'columns', 'jsonl': 'JSON lines', 'text': f'a text a line; {blanks}'}
        print(f'{where}: read as {names[format]}')
    if format == 'columns':
        return stream_columns(lines, where, options)
    if format == 'jsonl':
        return sentences_of(parse_records(lines, where, 'jsonl'), fields, tagged=False)
    return _read_lines(lines, where, raw=format == 'text')


def _recognised(lines: Iterable[Line], options: ColumnOptions, labels: Collection[str]) -> tuple[Iterator[Line], str]:
    """The lines, and their format: of a list by all of them, of a stream by the first, or two where needed."""
    whole = isinstance(lines, list)
    lines, seen = peeked(lines, len(lines) if whole else 1)
    if seen and is_object(seen[0]):
        return lines, 'jsonl'
    if seen and not whole and (seen[0].startswith('#') or _looks_like_columns([*seen, *seen], options, labels)):
        lines, seen = peeked(lines, 2)
    return lines, 'columns' if _looks_like_columns(seen, options, labels) else 'text'


def _looks_like_columns(lines: Sequence[str], options: ColumnOptions, labels: Collection[str]) -> bool:
    if options.comment:
        lines = [line for line in lines if not line.startswith(options.comment)]
    elif any('\t' in line.strip() for line in lines):  # CoNLL-U
        lines = [line for line in lines if not line.startswith('#')]
    if not lines or is_boundary(lines[0]) or '\t' in lines[0].strip():
        return bool(lines)
    rows = [split_columns(line, ' ') for line in lines]
    if len({len(row) for row in rows}) > 1:
        return False
    width, column = len(rows[0]), options.tag_column
    if width == 1:
        return len(rows) > 1
    if not -width <= column < width:
        return False
    known = [row[column] for row in rows if row[column] in labels]
    # Punctuation does not count: the marks at the end of sentences are also part-of-speech tags.
    return 2 * len(known) >= len(rows) and any(letter.isalpha() for tag in known for letter in tag)


def _read_lines(lines: Iterable[Line], where: str, *, raw: bool) -> Iterator[Sentence]:
    """A sentence a line: raw text, or words between blanks."""
    document, empty = 0, True
    for number, line in lines:
        words, offsets = split_words(line) if raw else (tuple(re.findall('[^ \t]+', line)), ())
        if not words:
            document += 1
            continue
        before = () if empty else ((),)
        empty = False
        columns = tuple((word,) for word in words)
        text = line if raw else None
        yield Sentence(f'{where}:{number}', words, None, document, columns, before, text=text, offsets=offsets)
    if empty:
        raise UserError(where, 'no word', 'a sentence a line', 'check the file')
