"""Strict readers of TSV and CSV tables."""

import csv
from collections.abc import Iterable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record, TableLayout
from bertjax.tasks.reading.texts import Line, check_no_blank, quote_names

_MAX_FIELD = 1 << 26  # the maximum number of characters of a CSV field; the default of the csv module is 131,072
_Cells = Iterator[tuple[int, list[str]]]


def tsv_records(lines: Iterable[Line], where: str, layout: TableLayout) -> Iterator[Record]:
    """Yields the rows of a TSV table; see records.py:read_records.

    Args:
      lines: The numbered lines, without blank lines.
      where: The name of the file, for messages.
      layout: The expected form of the table.
    """
    return _records(((number, line.split('\t')) for number, line in lines), where, 'tsv', layout)


def csv_records(lines: Iterable[Line], where: str, layout: TableLayout, blank: str) -> Iterator[Record]:
    """Yields the rows of a CSV table; see records.py:parse_records."""
    return _records(_csv_cells(lines, where, blank), where, 'csv', layout)


def _csv_cells(lines: Iterable[Line], where: str, blank: str) -> _Cells:
    """Yields (number of the first line, cells) for each row."""
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader((line + '\n' for _, line in lines), strict=True)
    gap = 0
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            fix = 'save the file as CSV with "double quotes" around fields that contain quotes, commas or line ends'
            raise UserError(f'{where}:{number}', f'invalid CSV ({error})', 'comma-separated fields', fix) from None
        if cells is None:
            return
        if not cells:
            gap = gap or number
            continue
        if blank == 'refused':
            check_no_blank(gap, where)
        yield number, cells


def _records(numbered: _Cells, where: str, format: str, layout: TableLayout) -> Iterator[Record]:
    first = next(numbered, None)
    if first is None:
        raise UserError(where, 'an empty file', 'a line with the column names, and rows', 'check the file')
    number, cells = first
    names, first_is_row = _names(cells, f'{where}:{number}', layout)
    if first_is_row:
        yield Record(f'{where}:{number}', dict(zip(names, cells, strict=True)))
    broken = []
    for number, cells in numbered:
        if len(cells) != len(names):
            broken.append(number)
            if len(broken) > layout.max_broken_rows:
                _raise_width(f'{where}:{number}', cells, names, format, len(broken))
            continue
        yield Record(f'{where}:{number}', dict(zip(names, cells, strict=True)))
    if broken:
        line_numbers = ', '.join(map(str, broken))
        print(f'{where}: skipped {len(broken)} rows with a wrong number of columns, in lines {line_numbers}')


def _names(cells: Sequence[str], where: str, layout: TableLayout) -> tuple[tuple[str, ...], bool]:
    """Returns the names of the columns, and whether the first line is a row instead of a header."""
    names = tuple(cell.strip() for cell in cells)
    missing = [column for column in layout.columns if column.required and not set(column.names) & set(names)]
    if missing and len(cells) == len(layout.headerless_columns):
        return layout.headerless_columns, True
    if missing:
        expected = 'a column ' + ' or '.join(missing[0].names)
        if layout.headerless_columns:
            expected += f', or no header and the columns {", ".join(layout.headerless_columns)}'
        fix = f'check the separator, and the column names in the first line and in {missing[0].key}'
        raise UserError(where, f'the columns {quote_names(names)}', expected, fix)
    for column in layout.columns:
        name = next((name for name in column.names if name in names), None)
        if name is not None and names.count(name) > 1:
            raise UserError(where, f'{names.count(name)} columns named {name!r}', 'one', 'rename the others')
    return names, False


def _raise_width(where: str, cells: Sequence[str], names: Sequence[str], format: str, broken: int) -> None:
    count = '1 column' if len(cells) == 1 else f'{len(cells)} columns'
    fix = 'correct or remove the row'
    if format == 'tsv':
        fix += '; TSV has no quoting, so fields with tabs or line ends need CSV'
    earlier = f' (and {broken - 1} earlier rows with a wrong number)' if broken > 1 else ''
    raise UserError(where, count + earlier, f'{len(names)}: {quote_names(names)}', fix)
