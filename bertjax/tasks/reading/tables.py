"""Strict readers of TSV and CSV tables."""

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record, TableLayout
from bertjax.tasks.reading.texts import Line, quote_names

_MAX_FIELD = 1 << 26  # the maximum number of characters of a CSV field; the default of the csv module is 131,072
_Cells = Iterator[tuple[int, list[str]]]


def _csv_cells(lines: Iterable[Line], where: str) -> _Cells:
    """Yields (number of the first line, cells) for each row. The cells of an empty line are []."""
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader((line + '\n' for _, line in lines), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            fix = 'save the file with commas between the columns and "double quotes" around fields that contain '
            fix += 'quotes, commas or line ends'
            raise UserError(f'{where}:{number}', f'invalid CSV ({error})', 'comma-separated fields', fix) from None
        if cells is None:
            return
        yield number, cells


def _drop_blank(numbered: _Cells, where: str, layout: TableLayout) -> _Cells:
    """Drops blank lines and rows of empty cells at the end of a table.

    For blank lines and rows of empty cells before another row, see `skip_blank_lines` and `max_broken_rows` of
    TableLayout.
    """
    keeps_blank = bool(layout.max_broken_rows)
    blank: list[tuple[int, list[str]]] = []
    for number, cells in numbered:
        if len(cells) != 1 and not any(map(str.strip, cells)):  # spreadsheet programs save a blank row as empty cells
            blank.append((number, [] if keeps_blank else cells))  # without cells, the row is broken
            continue
        if blank and not layout.skip_blank_lines and not keeps_blank:
            raise UserError(f'{where}:{blank[0][0]}', 'a blank line', 'a row', 'remove the line')
        yield from (row for row in blank if row[1] or keeps_blank)
        blank.clear()
        yield number, cells


def table_records(lines: Iterable[Line], where: str, format: str, layout: TableLayout) -> Iterator[Record]:
    """Yields the rows of a TSV or CSV table. See records.py:parse_records for the arguments."""
    if format == 'csv':
        numbered = _csv_cells(lines, where)
    else:
        numbered = ((number, line.split('\t') if line.strip(' ') else []) for number, line in lines)
    numbered = _drop_blank(numbered, where, layout)
    first = next(numbered, None)
    if first is None:
        raise UserError(where, 'an empty file', 'a line with the column names, and rows', 'check the file')
    number, cells = first
    names, first_is_row = _names(cells, f'{where}:{number}', layout)
    broken = []
    for number, cells in itertools.chain([first] if first_is_row else [], numbered):
        if len(cells) != len(names):
            broken.append(number)
            if len(broken) > layout.max_broken_rows:
                count = '1 column' if len(cells) == 1 else f'{len(cells)} columns' if cells else 'a blank row'
                earlier = f' (and {len(broken) - 1} earlier rows with a wrong number)' if len(broken) > 1 else ''
                advice = '; fields with commas need "double quotes"' if len(cells) > len(names) else ''
                if format == 'tsv' and cells:
                    advice = '; TSV has no quoting, so fields with tabs or line ends need CSV'
                expected, fix = f'{len(names)}: {quote_names(names)}', f'correct or remove the row{advice}'
                raise UserError(f'{where}:{number}', count + earlier, expected, fix)
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
    if not any(names):
        raise UserError(where, 'a blank line', 'the column names', 'remove the line')
    if missing:
        expected = 'a column ' + ' or '.join(missing[0].names)
        if layout.headerless_columns:
            expected += f', or no header and the columns {", ".join(layout.headerless_columns)}'
        key = f' and in {missing[0].key}' if missing[0].key else ''
        fix = f'check the separator, and the column names in the first line{key}'
        if any(';' in name for name in names):
            fix += '; if semicolons separate the columns, save the file with commas'
        raise UserError(where, f'the columns {quote_names(names)}', expected, fix)
    read = {name for column in layout.columns for name in column.names}
    for name in filter(None, names):
        if names.count(name) > 1 and (name in read or not read):
            raise UserError(where, f'{names.count(name)} columns named {name!r}', 'one', 'rename the others')
    return names, False
