"""Reads records with named fields from single files or shards: tables, JSON, Parquet and Arrow."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.tasks.reading.arrow import is_saved_dataset, read_arrow
from bertjax.tasks.reading.json_rows import convert_to_text, json_records, objects_of_lines
from bertjax.tasks.reading.layout import ANY_TABLE, Column, Record, TableLayout
from bertjax.tasks.reading.sources import DatasetSplit, read_dataset
from bertjax.tasks.reading.tables import table_records
from bertjax.tasks.reading.texts import Line, check_not_empty, check_text, peek_lines, quote_names, read_lines

FORMATS = {'.tsv': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.ndjson': 'jsonl', '.json': 'json'}
TEXT_FORMATS = tuple(dict.fromkeys(FORMATS.values()))
BINARY = {'.parquet': 'parquet', '.arrow': 'arrow', '.feather': 'arrow'}  # formats that are not text
FORMATS |= BINARY
# The suffixes of the formats whose fields may be lists: all except TSV and CSV.
NESTED = tuple(suffix for suffix, format in FORMATS.items() if format not in ('tsv', 'csv'))

# The files of a split: a file, several shards, a folder saved by `datasets`, or a split of tensorflow-datasets.
Files = Sequence[epath.Path | DatasetSplit]


@dataclasses.dataclass(frozen=True)
class Row:
    """The values of the requested columns of a record.

    Attributes:
      where, fields: see Record; `fields` is None for a line of plain text.
      values: the text of each requested column; None if the column is missing or its value is null.
    """

    where: str
    values: tuple[str | None, ...]
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False, repr=False)


def is_binary(path: epath.Path) -> bool:
    """Whether a path has the suffix of a binary format, or is a folder saved by `datasets`."""
    return streams.bare_suffix(path.name) in BINARY or is_saved_dataset(path)


def read_records(files: Files, format: str = '', layout: TableLayout = ANY_TABLE) -> Iterator[Record]:
    """Yields the records of the files of a split, in order.

    TSV has no quoting, as in the files of GLUE and SICK: a quotation mark is an ordinary character, and no field
    contains a tab or a line end. CSV follows RFC 4180, with `,` and `"`. JSON is a list of objects, an object of
    objects, or an object that is a single record. A .json file with several lines, each an object, is read as JSON
    lines. Text files that end in .gz, .bz2, .xz or .zst are decompressed. Text is UTF-8, with or without a byte order
    mark.

    Args:
      format: The format of text files, one of TEXT_FORMATS; '' or 'auto' selects the format by suffix. With
        'auto', the message about an unknown suffix proposes config.task.format.
      layout: The expected form of a table; by default, any table with a header.

    Raises:
      UserError: A file does not exist, has no rows or an unknown suffix, or is not valid UTF-8, CSV or JSON. Or a table
        lacks or repeats a column, has a row with a wrong number of columns, or has a blank row between others.
    """
    for path in files:
        if isinstance(path, DatasetSplit):
            yield from read_dataset(*path)
            continue
        suffix = streams.bare_suffix(path.name)
        kind = FORMATS.get(suffix) if format in ('', 'auto') else format
        if not path.is_file() and not is_saved_dataset(path):
            raise UserError(str(path), 'no such file', 'a table', 'check config.data and the names in config.task')
        if is_binary(path):
            yield from check_not_empty(read_arrow(path), str(path))
        elif kind:
            yield from parse_records(read_lines(path), str(path), kind, layout)
        else:
            fix = 'rename it' + (f', or set config.task.format to one of {", ".join(TEXT_FORMATS)}' if format else '')
            fix = 'save it as CSV UTF-8' if suffix in ('.xlsx', '.xls', '.ods') else fix
            raise UserError(str(path), f'the suffix {suffix!r}', 'one of ' + ', '.join(FORMATS), fix)


def parse_records(lines: Iterable[Line], where: str, format: str, layout: TableLayout = ANY_TABLE) -> Iterator[Record]:
    """Yields the records of a text file; see `read_records`.

    Each record is yielded as soon as its lines are read, except records of a JSON list or of the format 'json'.
    `format` is one of TEXT_FORMATS.
    """
    if format == 'json':
        records = json_records(lines, where)
    elif format == 'jsonl':
        lines, first_lines = peek_lines(lines)
        is_list = first_lines and first_lines[0].lstrip().startswith('[')  # a JSON list of all records
        records = (json_records if is_list else objects_of_lines)(lines, where)
    else:
        records = table_records(lines, where, format, layout)
    return check_not_empty(records, where)


def read_rows(files: Files, layout: TableLayout, format: str = '') -> Iterator[Row]:
    """Reads records with `read_records`, and yields the columns of `layout` for each record."""
    return select_columns(read_records(files, format, layout), layout.columns)


def select_columns(records: Iterable[Record], columns: Sequence[Column]) -> Iterator[Row]:
    """Yields the requested columns of each record.

    Raises:
      UserError: A record lacks a required column, or `convert_to_text` rejects a value.
    """
    for where, fields in records:
        yield Row(where, tuple([_value(fields, column, where) for column in columns]), fields)


def _value(fields: Mapping[str, Any], column: Column, where: str) -> str | None:
    name = next((name for name in column.names if name in fields), None)
    if name is not None:
        value = fields[name]
        if isinstance(value, str):  # the most frequent case, which does not need `location`
            return check_text(value, where)
        location = f'{where}, field {quote_names([name])}'
        return convert_to_text(value, location, lists=column.lists, key=column.key)
    if column.required:
        fix = 'correct the record' + (f', or name another field in {column.key}' if column.key else '')
        raise UserError(where, f'the fields {quote_names(fields)}', ' or '.join(column.names), fix)
    return None
