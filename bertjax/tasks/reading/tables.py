"""Strict reading of tables: TSV, CSV, JSON lines and JSON, plain or compressed, with columns by name."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.tasks.reading.json_rows import as_text, objects_of_lines, objects_of_text

FORMATS = {'.tsv': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.ndjson': 'jsonl', '.json': 'json'}  # by suffix
_MAX_FIELD = 1 << 26  # characters of a CSV field; the csv module's default limit is 131,072

Line = tuple[int, str]


class Row(NamedTuple):
    """A row: 'file:line', and the text in each requested column, None where there is none."""

    where: str
    values: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Column:
    """A requested column.

    Attributes:
      names: its possible names; the first that exists counts.
      required: whether a table without it is an error.
      joined: whether a list of strings is joined by spaces, or is an error.
      kept: whether a list is kept, as JSON.
    """

    names: tuple[str, ...]
    required: bool = True
    joined: bool = True
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is known about a table before it is read.

    Attributes:
      columns: the requested ones.
      bare: names of all columns of a file without header; () if a header is required.
      broken: up to so many rows with a wrong number of columns are left out, counted and printed; one more is an error.
    """

    columns: tuple[Column, ...]
    bare: tuple[str, ...] = ()
    broken: int = 0


def format_of(path: str, format: str = 'auto') -> str:
    """'tsv', 'csv', 'jsonl' or 'json', by the suffix of the name unless `format` is given.

    Raises:
      UserError: any other suffix.
    """
    if format != 'auto':
        return format
    suffix = streams.bare_suffix(path)
    if suffix not in FORMATS:
        mend = "rename it, or set config.task.format to 'tsv', 'csv', 'jsonl' or 'json'"
        raise UserError(path, f'the suffix {suffix!r}', 'one of ' + ', '.join(FORMATS), mend)
    return FORMATS[suffix]


def read_table(path: epath.PathLike, layout: Layout, format: str = 'auto') -> Iterator[Row]:
    """The rows of a file, in order.

    TSV has no quoting: a quotation mark is an ordinary character, and no field contains a tab or line end (as in the
    files of GLUE and SICK). CSV follows RFC 4180, with `,` and `"`. JSON is a list of objects, or an object of objects.
    .gz, .bz2, .xz and .zst files are decompressed; UTF-8 with or without a byte order mark.

    Args:
      path: local or remote.
      layout: what to read.
      format: see `format_of`.

    Raises:
      UserError: no such file, no rows, a missing or repeated column, a row with a wrong number of columns, a blank line
        between rows, or anything that is not UTF-8, CSV or JSON: with file and line.
    """
    path = epath.Path(path)
    if not path.is_file():
        raise UserError(str(path), 'no such file', 'a table', 'check config.data and the names in config.task')
    return parse_table(_read_lines(path), str(path), format_of(str(path), format), layout)


def parse_table(lines: Iterable[Line], where: str, format: str, layout: Layout) -> Iterator[Row]:
    """The rows of a table from its numbered lines, without line ends; see `read_table`."""
    if format == 'json':
        objects = objects_of_text('\n'.join(line for _, line in lines), where)
        rows = (_from_object(place, record, layout) for place, record in objects)
    elif format == 'jsonl':
        objects = objects_of_lines(without_blanks(lines, where), where)
        rows = (_from_object(place, record, layout) for place, record in objects)
    elif format == 'csv':
        rows = _from_cells(_csv_cells(lines, where), where, format, layout)
    else:
        cells = ((number, line.split('\t')) for number, line in without_blanks(lines, where))
        rows = _from_cells(cells, where, format, layout)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(where, 'no row', 'at least one', 'check the file')


def number_lines(text: str) -> Iterator[Line]:
    """Lines of a text, counted from 1; only \\n and \\r\\n end a line."""
    for number, line in enumerate(text.removeprefix('\ufeff').split('\n'), 1):
        yield number, line.removesuffix('\r')


def _read_lines(path: epath.Path) -> Iterator[Line]:
    lines = streams.Lines(iter(()))
    try:
        with path.open('rb') as file:
            compression = streams.compression_of(str(path), file.read(8))
            whole = io.BufferedReader(streams.CountedFile(file), streams.CHUNK)
            lines = streams.Lines(streams.chunks(whole, compression), cut=False)
            for raw in lines:
                line = streams.decode(raw, lines.number)
                if isinstance(line, streams.Broken):
                    mend = 'correct the line, or convert the file, for example with iconv'
                    raise UserError(f'{path}:{line.line}', line.detail, 'UTF-8 text', mend)
                yield lines.number, line.removesuffix('\r')
    except streams.DAMAGE as error:
        found = f'a file that cannot be read on ({error})'
        raise UserError(f'{path}:{lines.number + 1}', found, 'a whole file', 'fetch it again') from error


def without_blanks(lines: Iterable[Line], where: str) -> Iterator[Line]:
    """The lines without the blank ones at the end; a blank line elsewhere is an error."""
    blank = 0
    for number, line in lines:
        if not line.strip(' '):
            blank = blank or number
            continue
        _check_none_blank(blank, where)
        yield number, line


def _check_none_blank(number: int, where: str) -> None:
    if number:
        raise UserError(f'{where}:{number}', 'a blank line', 'a row', 'remove the line')


def _csv_cells(lines: Iterable[Line], where: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, with the number of its first line."""
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader((line + '\n' for _, line in lines), strict=True)
    blank = 0
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            mend = 'save the file as CSV with "double quotes" around fields that hold quotes, commas or line ends'
            raise UserError(f'{where}:{number}', f'wrong CSV ({error})', 'fields between commas', mend) from None
        if cells is None:
            return
        if not cells:
            blank = blank or number
            continue
        _check_none_blank(blank, where)
        yield number, cells


def _from_cells(numbered: Iterator[tuple[int, list[str]]], where: str, format: str, layout: Layout) -> Iterator[Row]:
    first = next(numbered, None)
    if first is None:
        raise UserError(where, 'an empty file', 'a line with the names of the columns, and rows', 'check the file')
    number, cells = first
    header, first_is_row = _header(cells, f'{where}:{number}', layout)
    picked = _pick(header, f'{where}:{number}', layout)
    if first_is_row:
        yield Row(f'{where}:{number}', tuple(None if at is None else cells[at] for at in picked))
    broken = []
    for number, cells in numbered:
        if len(cells) != len(header):
            broken.append(number)
            if len(broken) > layout.broken:
                _raise_width(f'{where}:{number}', cells, header, format, len(broken))
            continue
        yield Row(f'{where}:{number}', tuple(None if at is None else cells[at] for at in picked))
    if broken:
        places = ', '.join(map(str, broken))
        print(f'{where}: {len(broken)} broken rows left out, with another number of columns: lines {places}')


def _header(cells: Sequence[str], where: str, layout: Layout) -> tuple[tuple[str, ...], bool]:
    """Names of the columns, and whether the first line already is a row."""
    names = tuple(cell.strip() for cell in cells)
    missing = [column for column in layout.columns if column.required and not set(column.names) & set(names)]
    if not missing:
        return names, False
    if len(cells) == len(layout.bare):
        return layout.bare, True
    found = ', '.join(repr(name[:40]) for name in names[:20])
    expected = 'a column ' + ' or '.join(missing[0].names)
    if layout.bare:
        expected += f', or no header and the columns {", ".join(layout.bare)}'
    mend = 'check the names of the columns, in the first line and in config.task, and what is between them'
    raise UserError(where, f'the columns {found}', expected, mend)


def _pick(header: Sequence[str], where: str, layout: Layout) -> list[int | None]:
    """The place of each requested column."""
    places: list[int | None] = []
    for column in layout.columns:
        name = next((name for name in column.names if name in header), None)
        if name is not None and header.count(name) > 1:
            raise UserError(where, f'{header.count(name)} columns named {name!r}', 'one', 'rename the others')
        places.append(None if name is None else header.index(name))
    return places


def _raise_width(where: str, cells: Sequence[str], header: Sequence[str], format: str, broken: int) -> None:
    count = '1 column' if len(cells) == 1 else f'{len(cells)} columns'
    mend = 'correct or remove the row'
    if format == 'tsv':
        mend += '; a TSV has no quotes, fields with tabs or line ends need CSV'
    also = f' (and {broken - 1} such rows before)' if broken > 1 else ''
    raise UserError(where, count + also, f'{len(header)}: {", ".join(header[:20])}', mend)


def _from_object(where: str, record: dict, layout: Layout) -> Row:
    values = []
    for column in layout.columns:
        name = next((name for name in column.names if name in record), None)
        if name is None and column.required:
            found = ', '.join(list(record)[:20]) or 'none'
            mend = 'correct the record, or name another field in config.task'
            raise UserError(where, f'the fields {found}', ' or '.join(column.names), mend)
        place = f'{where}, field {name}'
        values.append(None if name is None else as_text(record[name], place, joined=column.joined, kept=column.kept))
    return Row(where, tuple(values))
