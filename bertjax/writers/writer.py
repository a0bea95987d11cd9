"""What takes a run's rows, and the list of them that a run has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from absl import logging

# A row of metrics.jsonl: 'step', 'split', 'phase', 'examples', and what was measured.
Row = Mapping[str, Any]


class Writer(Protocol):
    """Takes rows in the order of their steps. Any of these may raise; see `Writers`."""

    def truncate_after(self, step: int) -> None:
        """Called once, before the first row: the run continues at `step` (-1: begins), and what an earlier process
        wrote of later steps is void."""
        ...

    def write(self, row: Row) -> None:
        """Takes a row."""
        ...

    def sync(self) -> None:
        """Called before a checkpoint: what was written is to survive a loss of power."""
        ...

    def close(self) -> None:
        """Flushes; no row comes after it."""
        ...


class Writers:
    """The writers of a run. One that fails is dropped with one warning: no writer ever stops a training."""

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
                logging.warning('%s failed and gets no more rows; the training goes on: %r', writer, error)
