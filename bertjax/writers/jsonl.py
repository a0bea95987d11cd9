"""Append-only files of JSON lines. A resumed run can truncate them to the step of its checkpoint."""

import errno
import json
import mmap
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from bertjax.files.atomic import make_directory, sync_directory, writes_are_disabled
from bertjax.files.disk import annotate_write_errors


class JsonLines:
    """An append-only file with a JSON object on each line. Each object has a `step`, ascending except in time.jsonl."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self._file = None

    def __str__(self) -> str:
        return str(self.path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one line and passes it to the operating system, so that it survives a kill of this process."""
        if writes_are_disabled():
            return
        if self._file is None:
            make_directory(self.path.parent)
            new = not self.path.exists()
            self._file = self.path.open('ab', buffering=0)
            if new:
                sync_directory(self.path.parent)
        data = (json.dumps(row, ensure_ascii=False) + '\n').encode()
        with annotate_write_errors(self.path, len(data)):
            while data:
                data = data[self._file.write(data) :]

    def sync(self) -> None:
        """Flushes the file to disk, so that its lines survive a loss of power.

        If the file was removed or moved, the next line starts a new file. If its folder is gone too, raises an OSError.
        """
        if self._file is None:
            return
        with annotate_write_errors(self.path, 0):
            os.fsync(self._file.fileno())
            if not self.path.exists():
                if not self.path.parent.is_dir():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(self.path))
                logging.warning('%s was removed or moved; the training continues with a new file', self.path)
                self.close()

    def truncate_after(self, step: int) -> int:
        """Removes the lines of steps after `step` and damaged lines at the end. Returns the number of removed bytes.

        The file is read backwards, so that the cost depends only on the removed lines. One atomic truncation removes
        these lines.
        """
        self.close()
        size = self.path.stat().st_size if self.path.exists() else 0
        if writes_are_disabled() or not size:
            return 0
        end = size
        with self.path.open('rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            while end:
                start = data.rfind(b'\n', 0, end - 1) + 1
                row = parse_row(data[start:end])
                if row is not None and row['step'] <= step:
                    break
                end = start
        if end < size:
            os.truncate(self.path, end)
        return size - end

    def close(self) -> None:
        """Closes the file. The next write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Returns the object on a line, or None if the line is damaged or has no `step`."""
    try:
        row = json.loads(line) if line.endswith(b'\n') else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get('step')) is int else None


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of a metrics.jsonl, in order.

    Invalid lines are skipped, and a warning names the first five. An incomplete last line is skipped without a warning.
    """
    if not path.exists():
        return []
    with path.open('rb') as file:
        lines = file.readlines()
    rows = [row if (row := parse_row(line)) and isinstance(row.get('split'), str) else None for line in lines]
    damaged = [n for n, (line, row) in enumerate(zip(lines, rows, strict=True), 1) if not row and line.endswith(b'\n')]
    if damaged:
        numbers = ', '.join(map(str, damaged[:5])) + (' …' if len(damaged) > 5 else '')
        logging.warning('%s is damaged: %d lines are skipped (line %s)', path, len(damaged), numbers)
    return [row for row in rows if row]
