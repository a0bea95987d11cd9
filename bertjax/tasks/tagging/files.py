"""Sentences to tag: from the files of a split, tensorflow-datasets, or a user's own file."""

import re
from collections.abc import Collection

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import at_most_one, data_directory
from bertjax.metrics.entities import to_iob2
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.texts import read_text
from bertjax.tasks.tagging.columns import ColumnOptions, Sentence, is_boundary, read_columns, split_columns, split_lines

DATASET = 'conll2003'  # of tensorflow-datasets
FORMATS = ('auto', 'columns', 'text')
_NAMES = {
    'train': ('train',),
    'dev': ('dev', 'devel', 'valid', 'validation', 'testa'),
    'test': ('test', 'testb'),
}
_SUFFIXES = ('.txt', '.tsv', '.conll', '.iob', '.iob2', '.bio')


def find_file(data: str, split: str) -> epath.Path | None:
    """The column file of a split in the folder `data`, such as dev.txt, valid.conll, eng.testa; None if there is none.

    Raises:
      UserError: several, or no such folder.
    """
    folder = data_directory(data, 'a folder with train.txt, dev.txt …')
    found = sorted(path for path in folder.iterdir() if _is_of(path.name, split))
    return at_most_one(found, str(folder), split, 'move the others away')


def _is_of(name: str, split: str) -> bool:
    stem, dot, suffix = name.rpartition('.')
    if dot + suffix in _SUFFIXES:
        return stem in _NAMES[split]
    return (suffix if dot else name) in _NAMES[split]


def labelled_splits(data: str, options: ColumnOptions) -> list[str]:
    """The splits among train, dev and test that exist and have tags."""
    if not data:
        return ['train', 'dev', 'test']
    found = [split for split in ('train', 'dev') if find_file(data, split)]
    return [*found, 'test'] if _test_has_tags(data, options) else found


def read_split(data: str, split: str, options: ColumnOptions) -> list[Sentence]:
    """The sentences of a split in file order.

    Raises:
      UserError: no such split or file, or a malformed line.
    """
    if split not in _NAMES:
        raise UserError('config.split', repr(split), 'one of ' + ', '.join(_NAMES), 'choose one of them')
    if not data:
        return _from_dataset(split)
    path = find_file(data, split)
    if path is None:
        names = ' or '.join(f'{name}.txt' for name in _NAMES[split])
        raise UserError(data, f'no file of the {split} split', names, 'add it, or name another folder')
    tagged = split != 'test' or _test_has_tags(data, options)
    return read_columns(read_text(path), str(path), options, tagged=tagged)


def _from_dataset(split: str) -> list[Sentence]:
    sentences: list[Sentence] = []
    for index, record in enumerate(read_dataset(DATASET, split)):
        words, tags = record['tokens'], record['ner']
        if not words:  # tfds makes an empty record of the end of the file
            continue
        before = ((),) if sentences else ()
        where, columns = f'{DATASET}@{split}:{index}', tuple(zip(words, tags, strict=True))
        sentences.append(Sentence(where, tuple(words), tuple(to_iob2(tags)), 0, columns, before, scheme='iob2'))
    return sentences


def _test_has_tags(data: str, options: ColumnOptions) -> bool:
    """Whether there is a test file, and it does not lack the training file's column of tags."""
    test, train = find_file(data, 'test'), find_file(data, 'train')
    if test is None:
        return False
    width = _width(test, options)
    return width > 1 and (train is None or width != _width(train, options) - 1)


def _width(path: epath.Path, options: ColumnOptions) -> int:
    """Number of columns of the first word."""
    for line in split_lines(read_text(path)):
        comment = options.comment and line.startswith(options.comment)
        if line.strip() and not is_boundary(line) and not comment:
            return len(split_columns(line, '\t' if '\t' in line else ' '))
    return 0


def read_input(text: str, where: str, options: ColumnOptions, format: str, labels: Collection[str]) -> list[Sentence]:
    """A user's own file without tags, or with tags to be ignored.

    Args:
      text: its content.
      where: its name.
      options: of a column file.
      format: 'columns', 'text', or 'auto': columns if the first line has tabs or is -DOCSTART-, if all lines have the
        same number of columns and at least half of them a known tag, or if there are several lines, all single words.
      labels: the known tags.

    Raises:
      UserError: no words, or a malformed line.
    """
    if format == 'auto':
        format = 'columns' if _looks_like_columns(text, options, labels) else 'text'
        print(f'{where}: read as {"columns" if format == "columns" else "a sentence a line"}')
    return read_columns(text, where, options, tagged=False) if format == 'columns' else _read_lines(text, where)


def _looks_like_columns(text: str, options: ColumnOptions, labels: Collection[str]) -> bool:
    lines = [line for line in split_lines(text) if line.strip()]
    if options.comment:
        lines = [line for line in lines if not line.startswith(options.comment)]
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


def _read_lines(text: str, where: str) -> list[Sentence]:
    sentences: list[Sentence] = []
    document = 0
    for number, line in enumerate(split_lines(text), 1):
        words = tuple(re.split('[ \t]+', line.strip(' \t')))
        if words == ('',):
            document += 1
            continue
        before = ((),) if sentences else ()
        columns = tuple((word,) for word in words)
        sentences.append(Sentence(f'{where}:{number}', words, None, document, columns, before))
    if not sentences:
        raise UserError(where, 'no word', 'a sentence a line', 'check the file')
    return sentences
