"""TensorBoard event files, written without TensorFlow."""

import contextlib
import os
import pathlib
import struct
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

    def forget_after(self, step: int) -> None:
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


def read_times(directory: pathlib.Path) -> list[list[tuple[int, str, float]]]:
    """(step, split, seconds since 1970) of each row, in order, a list a process; what is damaged ends one."""
    from google.protobuf.message import DecodeError

    with _without_torch():
        from tensorboardX.proto.event_pb2 import Event

    processes = []
    for path in directory.glob('events*'):
        times: dict[tuple[int, str], float] = {}
        for record in _records(path):
            try:
                event = Event.FromString(record)
            except DecodeError:
                break
            if event.HasField('summary') and event.summary.value:
                split = event.summary.value[0].tag.partition('/')[0]
                times.setdefault((event.step, split), event.wall_time)
        processes += [[(*row, seconds) for row, seconds in times.items()]] if times else []
    return sorted(processes, key=lambda times: times[0][2])


def _records(path: pathlib.Path) -> Iterator[bytes]:
    """The records of a TFRecord file: the length in 8 bytes, its checksum in 4, the record, its checksum in 4."""
    left = path.stat().st_size
    with path.open('rb') as file:
        while left >= 16:
            (length,) = struct.unpack_from('<Q', file.read(12))
            left -= 16 + length
            if left < 0:
                return
            yield file.read(length)
            file.read(4)
