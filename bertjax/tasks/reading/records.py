"""Readers of rows of named fields from files of records: tables, JSON, Parquet and Arrow, single files or shards."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.tasks.reading.arrow import is_saved_dataset, read_arrow
from bertjax.tasks.reading.json_rows import convert_to_text, json_records, objects_of_lines
from bertjax.tasks.reading.layout import Column, Record, TableLayout
from bertjax.tasks.reading.tables import csv_records, tsv_records
from bertjax.tasks.reading.texts import (
    Line,
    check_text,
    number_lines,
    quote_names,
    read_lines,
    read_text,
    strip_blank_lines,
)

# Suffix of a file name -> format.
FORMATS = {'.tsv': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.ndjson': 'jsonl', '.json': 'json'}
BINARY = {'.parquet': 'parquet', '.arrow': 'arrow', '.feather': 'arrow'}  # formats that are not text
FORMATS |= BINARY
NESTED = tuple(
    suffix for suffix, format in FORMATS.items() if format not in ('tsv', 'csv')
)  # formats whose rows may hold lists

Files = Sequence[epath.Path]  # the files of a split: a file, its shards, or a folder that `datasets` saved


@dataclasses.dataclass(frozen=True)
class Row:
    """The requested columns of a record.

    Attributes:
      where: 'file:line'.
      values: the text in each requested column; None if it is missing.
      fields: all fields of the record, by name; None for a plain text.
    """

    where: str
    values: tuple[str | None, ...]
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False, repr=False)


def is_binary(path: epath.PathLike) -> bool:
    """Whether the file name has the suffix of a binary format."""
    return streams.bare_suffix(str(path)) in BINARY


def format_of(path: epath.PathLike, format: str = 'auto') -> str:
    """Returns the format in FORMATS by the suffix of the file name, or `format` if it is not 'auto'.

    Binary files always have the format of their suffix.

    Raises:
      UserError: The suffix is unknown.
    """
    suffix = streams.bare_suffix(str(path))
    if format != 'auto' and not is_binary(path):
        return format
    if suffix not in FORMATS:
        known = ', '.join(dict.fromkeys(FORMATS.values()))
        fix = f'rename it, or set config.task.format to one of {known}'
        raise UserError(str(path), f'the suffix {suffix!r}', 'one of ' + ', '.join(FORMATS), fix)
    return FORMATS[suffix]


def read_records(files: Files, format: str = 'auto', layout: TableLayout | None = None) -> Iterator[Record]:
    """Yields the records of the files of a split, in order; a file may be a folder that `datasets` saved.

    TSV has no quoting: a quotation mark is an ordinary character, and no field contains a tab or line end (as in the
    files of GLUE and SICK). CSV follows RFC 4180, with `,` and `"`. JSON is a list of objects, or an object of objects;
    a .json file with one object per line is read as JSON lines. .gz, .bz2, .xz and .zst files are decompressed; text is
    UTF-8 with or without a byte order mark.

    Args:
      files: The files, local or remote.
      format: See `format_of`.
      layout: The expected form of a table; None for any table with a header.

    Raises:
      UserError: A file does not exist, has no rows, a missing or repeated column, a row with a wrong number of columns,
        a blank line between rows, or content that is not UTF-8, CSV or JSON. The message has file and line.
    """
    for path in files:
        if is_saved_dataset(path) or (path.is_file() and is_binary(path)):
            yield from _check_not_empty(read_arrow(path), str(path))
        elif path.is_file():
            kind = format_of(path, format)
            # A list of records is one value, often on one line of unlimited length.
            lines = number_lines(read_text(path)) if kind == 'json' else read_lines(path)
            yield from parse_records(lines, str(path), kind, layout)
        else:
            raise UserError(str(path), 'no such file', 'a table', 'check config.data and the names in config.task')


def parse_records(
    lines: Iterable[Line], where: str, format: str, layout: TableLayout | None = None, *, blank: str = 'refused'
) -> Iterator[Record]:
    """Yields the records of a text from its numbered lines, each as soon as its lines are read; see `read_records`.

    Args:
      lines: The lines, without line ends.
      where: The name of the file.
      format: One of FORMATS.
      layout: See `read_records`.
      blank: The treatment of a blank line between two rows of a table: 'refused' or 'skipped'.
    """
    layout = layout or TableLayout()
    if format == 'json':
        records = json_records(lines, where)
    elif format == 'jsonl':
        records = objects_of_lines(lines, where)
    elif format == 'csv':
        records = csv_records(lines, where, layout, blank)
    else:
        records = tsv_records(strip_blank_lines(lines, where, blank), where, layout)
    return _check_not_empty(records, where)


def read_rows(files: Files, layout: TableLayout, format: str = 'auto') -> Iterator[Row]:
    """Yields the requested columns of the records of `read_records`."""
    return select_columns(read_records(files, format, layout), layout.columns)


def select_columns(records: Iterable[Record], columns: Sequence[Column]) -> Iterator[Row]:
    """Yields the requested columns of each record.

    Raises:
      UserError: A record lacks a required column, or a value is not a text, a number or a boolean.
    """
    for where, fields in records:
        yield Row(where, tuple([_value(fields, column, where) for column in columns]), fields)


def _value(fields: Mapping[str, Any], column: Column, where: str) -> str | None:
    name = next((name for name in column.names if name in fields), None)
    if name is not None:
        value = fields[name]
        if isinstance(value, str):  # the most frequent case, without building the place
            return check_text(value, where)
        place = f'{where}, field {quote_names([name])}'
        return convert_to_text(value, place, join_list=column.join_list, kept=column.kept, key=column.key)
    if column.required:
        fix = f'correct the record, or name another field in {column.key}'
        raise UserError(where, f'the fields {quote_names(fields)}', ' or '.join(column.names), fix)
    return None


def _check_not_empty(records: Iterator[Record], where: str) -> Iterator[Record]:
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise UserError(where, 'no row', 'at least one', 'check the file')
