"""A user's own texts to predict on: a table with named columns, JSON lines, or plain lines."""

import csv
from collections.abc import Iterable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading.json_rows import is_object
from bertjax.tasks.reading.layout import Column, Layout
from bertjax.tasks.reading.records import FORMATS, Row, parse_records, rows_of
from bertjax.tasks.reading.texts import Blank, Line, peeked


def read_input(
    lines: Iterable[Line], where: str, columns: Sequence[Column], *, quiet: bool = False, tabs: bool = False
) -> Iterator[Row | Blank]:
    """The texts of each record, as soon as its lines are there.

    The format follows from the name's suffix or else from the first line: a JSON object, column names separated by tabs
    or commas, or a text. Plain lines hold one text each, or the two of a pair separated by a tab; a blank one among
    them keeps its place. In the other formats blank lines mean nothing.

    Args:
      lines: of the file.
      where: its name.
      columns: of the texts, one or two.
      quiet: do not print the format that was detected.
      tabs: of plain lines, a tab in the first one makes all of them pairs, whatever `columns` are.

    Raises:
      UserError: no rows, or a malformed one.
    """
    lines, begin = peeked(lines)
    format = FORMATS.get(bare_suffix(where), 'lines')
    if format in ('lines', 'tsv'):
        format = _recognised(begin[-1] if begin else '', columns)
    names = {'tsv': 'a table with tabs', 'csv': 'a table with commas', 'jsonl': 'JSON lines', 'json': 'JSON'}
    texts = 2 if tabs and begin and '\t' in begin[-1] else len(columns)
    if not quiet:
        print(f'{where}: read as {names.get(format, "a text a line" if texts == 1 else "a pair a line")}')
    if format == 'lines':
        return _plain(lines, where, texts)
    return rows_of(parse_records(lines, where, format, Layout(tuple(columns)), blank='skipped'), columns)


def _plain(lines: Iterable[Line], where: str, texts: int) -> Iterator[Row | Blank]:
    blanks: list[Blank] = []
    empty = True
    for number, line in lines:
        here = f'{where}:{number}'
        if not line.strip(' '):
            blanks.append(Blank(here))
            continue
        yield from blanks  # not those at the end
        blanks, empty = [], False
        cells = tuple(line.split('\t'))
        if len(cells) != texts:
            expected = 'a text a line, without tabs' if texts == 1 else 'two texts a line with a tab between'
            fix = 'correct the line, or put the names of the columns in the first line'
            raise UserError(here, f'{len(cells) - 1} tabs', expected, fix)
        yield Row(here, cells)
    if empty:
        raise UserError(where, 'no text', 'at least one', 'check the file')


def _recognised(line: str, columns: Sequence[Column]) -> str:
    """The format of a file with this first line."""
    try:
        between_commas = next(csv.reader([line]), [])
    except csv.Error:  # a field that is too long, or a carriage return inside
        between_commas = []
    # Cells are compared unstripped: in a sentence, a column's name may stand between commas, but after a space.
    for format, cells in {'tsv': line.split('\t'), 'csv': between_commas}.items():
        if all(set(cells) & set(column.names) for column in columns):
            return format
    return 'jsonl' if is_object(line) else 'lines'
