"""The form of a record of any file, and of a request for columns of a table."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record of any file: its place 'file:line' and its fields by name."""

    where: str
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A requested column.

    Attributes:
      names: the possible names; the first that exists is used.
      required: whether a table without the column is an error.
      join_list: whether a list of strings is joined by spaces, or is an error.
      kept: whether a list is converted to JSON text.
      key: the config key that names the column, for messages.
    """

    names: tuple[str, ...]
    required: bool = True
    join_list: bool = True
    kept: bool = False
    key: str = 'config.task'


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """The expected form of a table.

    Attributes:
      columns: the requested columns.
      bare: the names of all columns of a file without header; () if a header is required.
      broken: the number of rows with a wrong number of columns that are left out and printed; one more is an error.
    """

    columns: tuple[Column, ...] = ()
    bare: tuple[str, ...] = ()
    broken: int = 0
