"""What a record of any file is, and what is asked of a file of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record of any file: 'file:line', and its fields by name."""

    where: str
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A requested column.

    Attributes:
      names: its possible names; the first that exists counts.
      required: whether a table without it is an error.
      joined: whether a list of strings is joined by spaces, or is an error.
      kept: whether a list is kept, as JSON.
      key: of the config that names it, for messages.
    """

    names: tuple[str, ...]
    required: bool = True
    joined: bool = True
    kept: bool = False
    key: str = 'config.task'


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is known about a table before it is read.

    Attributes:
      columns: the requested ones.
      bare: names of all columns of a file without header; () if a header is required.
      broken: up to so many rows with a wrong number of columns are left out, counted and printed; one more is an error.
    """

    columns: tuple[Column, ...] = ()
    bare: tuple[str, ...] = ()
    broken: int = 0
