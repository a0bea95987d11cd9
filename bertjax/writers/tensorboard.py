"""TensorBoard event files, written without TensorFlow."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from bertjax.writers.writer import MetricRow, Writer, row_numbers

_FLUSH_SECONDS = 30
_UNUSED = ('torch', 'boto3', 'google.cloud.storage')  # optional imports of tensorboardX that this module does not need


class TensorBoard(Writer):
    """A writer of scalars `SPLIT/NAME`.

    Rows are written in the caller's thread. tensorboardX's SummaryWriter is not used, because it writes in a background
    thread. If the disk is full, that thread ends, and SummaryWriter blocks forever.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = pathlib.Path(directory)
        self._events: Any = None  # tensorboardX's EventsWriter
        self._flushed = 0.0

    def __str__(self) -> str:
        return str(self.directory)

    def write(self, row: MetricRow) -> None:
        """Writes the numbers of a row at its step."""
        with contextlib.nullcontext() if 'tensorboardX' in sys.modules else _without_clients():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.summary import scalar

        if self._events is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self.directory / 'events'))
            # A session start makes TensorBoard hide the rows of earlier processes at this step and later steps.
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=row['step'], session_log=start))
        for name, value in row_numbers(row).items():
            self._events.write_event(Event(wall_time=time.time(), step=row['step'], summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._events.flush()
            self._flushed = time.monotonic()

    def sync(self) -> None:
        """Flushes pending rows to the operating system. They may be lost if the power fails."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flushes pending rows and closes the file."""
        if self._events is not None:
            self._events.close()


@contextlib.contextmanager
def _without_clients() -> Iterator[None]:
    """Hides packages from tensorboardX. Their import takes seconds, and `write` does not need them."""
    hidden = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
