"""A writer that calls a function with each row, for example to draw a live plot in a notebook."""

from collections.abc import Callable, Mapping
from typing import Any

from bertjax.writers.writer import Row


class Callback:
    """Passes each new row to a function, as a dict. Rows of an earlier process are not passed again.

    Args:
      on_row: The function.
      fields: Further fields of each row.
    """

    def __init__(self, on_row: Callable[[dict[str, Any]], object], fields: Mapping[str, Any]):
        self._on_row, self._fields = on_row, fields

    def __str__(self) -> str:
        return 'on_row'

    def write(self, row: Row) -> None:
        """Calls the function."""
        self._on_row({**row, **self._fields})

    def truncate_after(self, step: int) -> None:
        """Does nothing: a row that was passed to the function cannot be removed."""

    def sync(self) -> None:
        """Does nothing: nothing is stored."""

    def close(self) -> None:
        """Does nothing."""
