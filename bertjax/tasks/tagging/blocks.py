"""Blocks of a CoNLL column file: the rows of a sentence with the lines before it."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Line

DOCSTART = '-DOCSTART-'
_BLANKS = re.compile('[ \t]+')  # other white space, such as a no-break space, is part of a word


class ColumnBlock(NamedTuple):
    """A sentence: its rows with their line numbers, the lines before them, the document number, and the separator."""

    rows: list[tuple[int, tuple[str, ...]]]
    before: tuple[tuple[str, ...], ...]
    document: int
    separator: str


def split_lines(text: str) -> list[str]:
    """Splits a text at \\n and \\r\\n only, because U+0085 and U+2028 may be words."""
    lines = [line.removesuffix('\r') for line in text.split('\n')]
    return lines[:-1] if lines[-1] == '' else lines


def is_boundary(line: str) -> bool:
    """Whether a line separates documents: its first column is -DOCSTART- exactly, not a longer word."""
    return line.startswith(DOCSTART) and split_columns(line, ' ')[0] == DOCSTART


def split_columns(line: str, separator: str) -> tuple[str, ...]:
    """Returns the columns of a line. The separator ' ' stands for any number of spaces and tabs."""
    if separator == '\t':
        return tuple(column.strip(' ') for column in line.split('\t'))
    return tuple(_BLANKS.split(line.strip(' \t')))


def read_blocks(lines: Iterable[Line], where: str, prefix: str) -> Iterator[ColumnBlock]:
    """Yields the blocks of numbered lines, each as soon as its lines are read.

    Args:
      lines: The lines of the file.
      where: The name of the file.
      prefix: The prefix of comments, see columns.py:ColumnOptions.

    Raises:
      UserError: A line has another number of columns than the first line.
    """
    rows: list[tuple[int, tuple[str, ...]]] = []
    before: list[tuple[str, ...]] = []
    document, separator, count, first = 0, '', 0, 0
    lines, first_separator, width = _peek_first_word(lines)
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
            separator = '\t' if '\t' in line else ' '
        columns = split_columns(line, separator)
        if not count:
            count, first = len(columns), number
        if len(columns) != count:
            fix = 'correct or remove the line'
            if line.startswith('#'):
                fix += '; comments stand before the first word of a sentence'
            expected = f'{count}, as in line {first}, between {"spaces" if separator == " " else "tabs"}'
            raise UserError(f'{where}:{number}', f'{count_columns(len(columns))} in {line[:60]!r}', expected, fix)
        rows.append((number, columns))


def _peek_first_word(lines: Iterable[Line]) -> tuple[Iterator[Line], str, int]:
    """Returns all lines, and the separator and number of columns of the first line that cannot be a comment ('' and 0
    if there is none)."""
    lines, seen = iter(lines), []
    for line in lines:
        seen.append(line)
        if line[1].strip(' \t') and not line[1].startswith('#') and not is_boundary(line[1]):
            separator = '\t' if '\t' in line[1] else ' '
            return itertools.chain(seen, lines), separator, len(split_columns(line[1], separator))
    return iter(seen), '', 0


def _is_comment(line: str, prefix: str, separator: str, width: int) -> bool:
    """Whether a line before a sentence is a comment."""
    if prefix:
        return line.startswith(prefix)
    # A # can also be a word.
    return line.startswith('#') and width > 0 and len(split_columns(line, separator)) != width


def count_columns(columns: int) -> str:
    """'1 column', '2 columns'."""
    return '1 column' if columns == 1 else f'{columns} columns'
