"""A record of a data file, and the expected columns of a table."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record of a data file, with its location, such as 'file:line' or 'file[key]', and its fields by name."""

    where: str
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column to read.

    Attributes:
      names: the possible names; the first that exists is used.
      required: whether a table without the column is an error.
      lists: the treatment of lists, see json_rows.py:convert_to_text.
      key: the config key that names the column, for messages; '' if no key does.
    """

    names: tuple[str, ...]
    required: bool = True
    lists: str = 'join'
    key: str = ''


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """The expected form of a table.

    Attributes:
      columns: the columns to read.
      headerless_columns: the names of all columns of a file without a header; () if a header is required.
      max_broken_rows: the maximum number of rows with a wrong number of columns; these rows are skipped and listed. If
        it is not 0, a blank line or a row of empty cells between rows is such a row, because a line end may have broken
        a row.
      skip_blank_lines: if True, blank lines between rows are skipped, and rows of empty cells between rows are read; if
        False, both are errors.
    """

    columns: tuple[Column, ...] = ()
    headerless_columns: tuple[str, ...] = ()
    max_broken_rows: int = 0
    skip_blank_lines: bool = False


ANY_TABLE = TableLayout()
