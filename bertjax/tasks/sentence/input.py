"""Reads texts for prediction from a table with named columns, from JSON, or from plain lines."""

import csv
from collections.abc import Iterable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading.json_rows import begins_objects
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import FORMATS, Row, parse_records, select_columns
from bertjax.tasks.reading.texts import Blank, Line, check_not_empty, peek_lines


def read_input(
    lines: Iterable[Line],
    where: str,
    columns: Sequence[Column],
    *,
    headerless_columns: Sequence[str] = (),
    format: str = 'auto',
    quiet: bool = False,
    tabs: bool = False,
    keep_tabs: bool = False,
) -> Iterator[Row | Blank]:
    """Yields the texts of each record as soon as its lines are read. A .json file is read to its end first.

    The suffix of the file name determines the format, or `format` if the suffix is unknown. The first line with text
    decides instead if this format is TSV, if there is no suffix, or if the suffix is unknown and `format` is 'auto': a
    JSON object means JSON lines, the beginning of a list of objects means JSON, column names mean a table, and any
    other line means plain lines. A plain line is a text, or a pair of texts with a tab between them. Each blank
    line of such a file yields a `Blank`. In other formats, blank lines and final rows of empty cells are ignored.

    Args:
      columns: The columns of the one or two texts.
      headerless_columns: The names of all columns of a table without a header; () if tables have a header.
      quiet: Whether to suppress the message about the detected format.
      tabs: Whether plain lines are pairs if the first line has a tab, even if `columns` has one column.
      keep_tabs: Whether a plain line with tabs is a single text.

    Raises:
      UserError: The file has no rows, or a row is malformed.
    """
    lines, first_lines = peek_lines(lines)
    suffix = bare_suffix(where)  # '' for standard input
    format = FORMATS.get(suffix, format if suffix and format != 'auto' else 'lines')
    if format in ('lines', 'tsv'):
        first_line = first_lines[-1] if first_lines else ''
        is_headerless = format == 'tsv' and len(first_line.split('\t')) == len(headerless_columns) > 1
        format = 'tsv' if is_headerless else detect_format(first_line, columns)
    names = {'tsv': 'a table with tabs', 'csv': 'a table with commas', 'jsonl': 'JSON lines', 'json': 'JSON'}
    texts = 2 if tabs and first_lines and '\t' in first_lines[-1] else len(columns)
    if not quiet:
        print(f'{where}: read as {names.get(format, "one text per line" if texts == 1 else "one pair per line")}')
    if format == 'lines':
        return check_not_empty(_plain_rows(lines, where, texts, keep_tabs), where, 'no text')
    layout = TableLayout(tuple(columns), tuple(headerless_columns), skip_blank_lines=True)
    return select_columns(parse_records(lines, where, format, layout), columns)


def _plain_rows(lines: Iterable[Line], where: str, texts: int, keep_tabs: bool) -> Iterator[Row | Blank]:
    for number, line in lines:
        location = f'{where}:{number}'
        if not line.strip(' '):
            yield Blank(location)
            continue
        cells = (line,) if keep_tabs else tuple(line.split('\t'))
        if len(cells) != texts:
            expected = 'one text per line, without tabs' if texts == 1 else 'two texts per line with a tab between them'
            fix = 'correct the line, or put the column names in the first line'
            found = '1 tab' if len(cells) == 2 else f'{len(cells) - 1} tabs'
            raise UserError(location, found, expected, fix)
        yield Row(location, cells)


def detect_format(line: str, columns: Sequence[Column]) -> str:
    """Returns 'tsv', 'csv', 'jsonl' or 'lines', the format detected from the first line with text of a file."""
    try:
        csv_cells = next(csv.reader([line]), [])
    except csv.Error:  # a field is too long, or contains a carriage return
        csv_cells = []
    # Cells are not stripped, so that a sentence with a column name between commas (`a, text, b`) is not a header.
    for format, cells in {'tsv': line.split('\t'), 'csv': csv_cells}.items():
        if all(set(cells) & set(column.names) for column in columns):
            return format
    return 'jsonl' if begins_objects(line) else 'lines'
