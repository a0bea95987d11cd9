"""The protocol of writers, and the list of a run's writers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from absl import logging

# A row of metrics.jsonl: 'step', 'split', 'phase', 'examples', and metrics.
Row = Mapping[str, Any]


class Writer(Protocol):
    """A consumer of rows, in the order of their steps. Any method may raise an error; see `Writers`."""

    def truncate_after(self, step: int) -> None:
        """Discards the rows of an earlier process whose step is greater than `step`.

        It is called once, before the first row. The run continues at `step`, or starts if `step` is -1.
        """
        ...

    def write(self, row: Row) -> None:
        """Writes a row."""
        ...

    def sync(self) -> None:
        """Makes the written rows survive a loss of power. It is called before each checkpoint."""
        ...

    def close(self) -> None:
        """Flushes and closes the writer; no row follows."""
        ...


class Writers:
    """The writers of a run. A writer that fails is removed with one warning and never stops the training."""

    def __init__(self, writers: Sequence[Writer]):
        self._writers = list(writers)

    def truncate_after(self, step: int) -> None:
        """See Writer."""
        self._each(lambda writer: writer.truncate_after(step))

    def write(self, row: Row) -> None:
        """See Writer."""
        self._each(lambda writer: writer.write(row))

    def sync(self) -> None:
        """See Writer."""
        self._each(lambda writer: writer.sync())

    def close(self) -> None:
        """See Writer."""
        self._each(lambda writer: writer.close())

    def _each(self, call: Callable[[Writer], None]) -> None:
        for writer in list(self._writers):
            try:
                call(writer)
            except Exception as error:
                self._writers.remove(writer)
                logging.warning('%s failed and gets no more rows; the training continues: %r', writer, error)
