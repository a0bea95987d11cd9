"""Splits a CoNLL column file into blocks. A block has the rows of a sentence and the lines before it."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Line, peek_lines

DOCSTART = '-DOCSTART-'
_BLANKS = re.compile('[ \t]+')  # other white space, such as a no-break space, may be part of a word


class ColumnBlock(NamedTuple):
    """A sentence in a column file.

    Attributes:
      rows: (line number, columns) of each word.
      preceding_lines: the lines since the previous sentence: the columns of a document boundary, (line,) for a comment,
        and () for a blank line.
      document: the number of document boundaries before the sentence.
      separator: the separator of the columns, see `split_columns`.
    """

    rows: list[tuple[int, tuple[str, ...]]]
    preceding_lines: tuple[tuple[str, ...], ...]
    document: int
    separator: str


def is_boundary(line: str) -> bool:
    """Whether a line separates documents, which means that its first column is -DOCSTART-."""
    return line.startswith(DOCSTART) and split_columns(line, ' ')[0] == DOCSTART


def split_columns(line: str, separator: str) -> tuple[str, ...]:
    """Returns the columns of a line. The separator ' ' means any number of spaces and tabs."""
    if separator == '\t':
        return tuple(column.strip(' ') for column in line.split('\t'))
    return tuple(_BLANKS.split(line.strip(' \t')))


def read_blocks(lines: Iterable[Line], where: str, prefix: str) -> Iterator[ColumnBlock]:
    """Yields the blocks of a column file, each as soon as its lines are read.

    Args:
      lines: The numbered lines of the file.
      where: The name of the file.
      prefix: The prefix of comments, see `comment` of columns.py:ColumnOptions.

    Raises:
      UserError: The lines of words differ in their number of columns.
    """
    rows: list[tuple[int, tuple[str, ...]]] = []
    before: list[tuple[str, ...]] = []
    document, separator, count, first = 0, '', 0, 0
    # The line of a word is neither blank, nor a possible comment, nor a document boundary.
    is_word = lambda line: line.strip(' \t') and not line.startswith('#') and not is_boundary(line)  # noqa: E731
    lines, words = peek_lines(lines, accept=is_word)
    first_separator = _separator(''.join(words))
    width = len(split_columns(words[0], first_separator)) if words else 0
    for number, line in itertools.chain(lines, [(0, '')]):
        filled = line.strip(' \t') != ''
        boundary = filled and is_boundary(line)
        comment = filled and not rows and _is_comment(line, prefix, separator or first_separator, count or width)
        if not filled or boundary:
            if rows:
                yield ColumnBlock(rows, tuple(before), document, separator)
                rows, before = [], []
            document += boundary
        if not filled or boundary or comment:
            before.append((line,) if comment else split_columns(line, ' ') if boundary else ())
            continue
        if not separator:
            separator = _separator(line)
        columns = split_columns(line, separator)
        if not count:
            count, first = len(columns), number
        if len(columns) != count:
            fix = 'correct or remove the line'
            if line.startswith('#'):
                fix += '; a comment must precede the first word of a sentence'
            expected = f'{count}, as in line {first}, separated by {"spaces" if separator == " " else "tabs"}'
            raise UserError(f'{where}:{number}', f'{count_columns(len(columns))} in {line[:60]!r}', expected, fix)
        rows.append((number, columns))


def _separator(line: str) -> str:
    return '\t' if '\t' in line else ' '


def _is_comment(line: str, prefix: str, separator: str, width: int) -> bool:
    if prefix:
        return line.startswith(prefix)
    # A line that starts with # can also be the line of a word.
    return line.startswith('#') and width > 0 and len(split_columns(line, separator)) != width


def count_columns(columns: int) -> str:
    """Returns '1 column', '2 columns' …"""
    return '1 column' if columns == 1 else f'{columns} columns'
