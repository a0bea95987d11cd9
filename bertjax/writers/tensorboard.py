"""TensorBoard event files, written without TensorFlow."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from bertjax.writers.writer import Row

_FLUSH_SECONDS = 30


class TensorBoard:
    """Scalars `SPLIT/NAME` of each row; the file is opened at the first one.

    Written in the caller's thread: tensorboardX's SummaryWriter hands rows to a thread of its own, and blocks for ever
    once that thread has died of a full disk.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = pathlib.Path(directory)
        self._events: Any = None  # tensorboardX's EventsWriter
        self._flushed = 0.0

    def __str__(self) -> str:
        return str(self.directory)

    def truncate_after(self, step: int) -> None:
        """Nothing yet: the first row of a process hides what earlier ones wrote from its step on."""

    def write(self, row: Row) -> None:
        """Writes the numbers of a row at its step."""
        with _without_torch():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.summary import scalar

        if self._events is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self.directory / 'events'))
            # TensorBoard purges what it has read of this step and later ones when it sees a session start.
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=row['step'], session_log=start))
        for name, value in row.items():
            if isinstance(value, (int, float)) and name not in ('step', 'phase'):
                summary = scalar(f'{row["split"]}/{name}', value)
                self._events.write_event(Event(wall_time=time.time(), step=row['step'], summary=summary))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._events.flush()
            self._flushed = time.monotonic()

    def sync(self) -> None:
        """Flushes what is pending: enough for a picture."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flushes what is pending."""
        if self._events is not None:
            self._events.close()


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hides PyTorch, which tensorboardX imports where it is installed, in seconds, for tensors that no row has."""
    hides = 'torch' not in sys.modules
    if hides:
        sys.modules['torch'] = None
    try:
        yield
    finally:
        if hides:
            del sys.modules['torch']
