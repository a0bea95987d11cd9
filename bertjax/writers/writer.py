"""The base class of writers, a writer that calls a function, and the list of a run's writers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

# A row of metrics.jsonl: 'step', 'split', 'phase', 'examples', and metrics.
MetricRow = Mapping[str, Any]


def row_numbers(row: MetricRow) -> dict[str, float]:
    """Returns {`SPLIT/NAME`: value} of the finite numbers of a row, except its step and phase."""
    values = {name: x for name, x in row.items() if isinstance(x, int | float) and name not in ('step', 'phase')}
    return {f'{row["split"]}/{name}': float(x) for name, x in values.items() if math.isfinite(x)}


class Writer:
    """A consumer of rows, in the order of their steps. Any method may raise an error, which `Writers` handles."""

    def truncate_after(self, step: int) -> None:
        """Discards the rows of earlier processes whose step is greater than `step`.

        This method is called once, before the first row. The run continues at `step`; -1 stands for a new run.
        """

    def write(self, row: MetricRow) -> None:
        """Writes a row."""
        raise NotImplementedError

    def sync(self) -> None:
        """Flushes the written rows, if possible to disk. This method is called before each checkpoint."""

    def close(self) -> None:
        """Flushes and closes the writer. No row follows."""


class Callback(Writer):
    """Passes each new row, with further `fields`, to a function. Rows of an earlier process are not passed again."""

    def __init__(self, on_row: Callable[[dict[str, Any]], object], fields: Mapping[str, Any]):
        self._on_row, self._fields = on_row, fields

    def __str__(self) -> str:
        return 'on_row'

    def write(self, row: MetricRow) -> None:
        self._on_row({**row, **self._fields})


class Writers:
    """The writers of a run. A writer that fails is removed with one warning and never stops the training."""

    def __init__(self, writers: Sequence[Writer]):
        self._writers = list(writers)

    def truncate_after(self, step: int) -> None:
        self._each(lambda writer: writer.truncate_after(step))

    def write(self, row: MetricRow) -> None:
        self._each(lambda writer: writer.write(row))

    def sync(self) -> None:
        self._each(lambda writer: writer.sync())

    def close(self) -> None:
        self._each(lambda writer: writer.close())

    def _each(self, call: Callable[[Writer], None]) -> None:
        for writer in list(self._writers):
            try:
                call(writer)
            except Exception as error:
                self._writers.remove(writer)
                logging.warning('%s failed and gets no more rows; the training continues: %r', writer, error)
