"""TensorBoard event files, written without TensorFlow."""

import os
import pathlib
import socket
import time
from typing import BinaryIO

import numpy as np

from bertjax.files.protobuf import bytes_field, fixed_field, masked_crc32c, varint_field
from bertjax.writers.writer import MetricRow, Writer, row_numbers

_PREFIX = 'events.out.tfevents.'
_FLUSH_SECONDS = 30
# Field numbers of Event in tensorflow/core/util/event.proto. The second line has a field of SessionLog and its value
# START. The third line has fields of Summary and Summary.Value.
_TIME, _STEP, _VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_STATUS, _START = 1, 1
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2


class TensorBoard(Writer):
    """A writer of the numbers of each row, as TensorBoard scalars with the names `SPLIT/NAME`."""

    def __init__(self, directory: str | os.PathLike):
        self.directory = pathlib.Path(directory)
        self._file: BinaryIO | None = None
        self._flushed, self._first_step = 0.0, 0

    def __str__(self) -> str:
        return str(self.directory)

    def truncate_after(self, step: int) -> None:
        """Hides the rows of earlier processes after `step`, when the first row is written."""
        self._first_step = step + 1

    def write(self, row: MetricRow) -> None:
        """Writes the numbers of a row at its step."""
        if self._file is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files in the order of their names, and the clock may have been set back.
            times = [path.name.split('.')[3] for path in self.directory.glob(f'{_PREFIX}*')]
            number = max([int(time.time()), *(int(text) + 1 for text in times if text.isdecimal())])
            self._file = (self.directory / f'{_PREFIX}{number}.{socket.gethostname()}').open('xb')
            self._write_event(0, bytes_field(_VERSION, b'brain.Event:2'))
            # A session start makes TensorBoard hide the rows of earlier processes at this step and later steps.
            self._write_event(self._first_step, bytes_field(_SESSION_LOG, varint_field(_STATUS, _START)))
        for name, value in row_numbers(row).items():
            with np.errstate(over='ignore'):  # a large perplexity becomes infinite
                number = np.float32(value).tobytes()
            scalar = bytes_field(_TAG, name.encode()) + fixed_field(_SIMPLE_VALUE, number)
            self._write_event(row['step'], bytes_field(_SUMMARY, bytes_field(_VALUE, scalar)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def _write_event(self, step: int, content: bytes) -> None:
        """Writes a record in TensorFlow's format (tensorflow/core/lib/io/record_writer.cc), with two checksums."""
        event = fixed_field(_TIME, np.float64(time.time()).tobytes()) + varint_field(_STEP, step) + content
        for part in (len(event).to_bytes(8, 'little'), event):
            self._file.write(part + masked_crc32c(part))

    def sync(self) -> None:
        """Flushes pending rows to the operating system. They may be lost if the power fails."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flushes pending rows and closes the file."""
        if self._file is not None:
            self._file.close()
