"""Append-only JSON lines; on resume, cut back to the step of the checkpoint."""

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from bertjax.files.atomic import make_directory, sync_directory
from bertjax.files.disk import writing
from bertjax.files.write_guard import writes_are_disabled


class JsonLines:
    """An append-only file of one JSON object a line, each with a `step` that does not fall from line to line."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self._file = None

    def __str__(self) -> str:
        return str(self.path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one line and hands it to the operating system: it survives a kill of this process."""
        if writes_are_disabled():
            return
        if self._file is None:
            make_directory(self.path.parent)
            new = not self.path.exists()
            self._file = self.path.open('ab', buffering=0)
            if new:
                sync_directory(self.path.parent)
        data = (json.dumps(row, ensure_ascii=False) + '\n').encode()
        with writing(self.path, len(data)):
            while data:
                data = data[self._file.write(data) :]

    def sync(self) -> None:
        """What was written survives a loss of power, too.

        A file that was removed or moved meanwhile is begun again with the next line.

        Raises:
          FileNotFoundError: so was its folder.
        """
        if self._file is None:
            return
        with writing(self.path, 0):
            os.fsync(self._file.fileno())
            if not self.path.exists():
                if not self.path.parent.is_dir():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(self.path))
                logging.warning('%s was removed or moved; the training goes on, and a new one is begun', self.path)
                self.close()

    def truncate_after(self, step: int) -> int:
        """Cuts the lines whose step is greater than `step`, and a half-written last one. Returns the bytes cut.

        Reads backwards from the end, so that the cost is that of what is cut and not of what is kept; the cut itself
        is one truncation, which is whole or not at all.
        """
        self.close()
        if writes_are_disabled() or not self.path.exists():
            return 0
        with self.path.open('rb') as file:
            size = file.seek(0, os.SEEK_END)
            keep = self._kept_size(file, size, step)
        if keep < size:
            os.truncate(self.path, keep)
        return size - keep

    @staticmethod
    def _kept_size(file: Any, size: int, step: int, block: int = 1 << 16) -> int:
        start, end, tail = size, size, b''  # tail begins at byte `start` of the file; from `end` on all is cut
        while end > 0:
            before = tail.rfind(b'\n', 0, max(end - start - 1, 0))  # the end of the line before the last
            if before < 0 and start > 0:
                grown = min(block, start)
                start -= grown
                file.seek(start)
                tail = file.read(grown) + tail[: end - start - grown]
                continue
            if _is_kept(tail[before + 1 : end - start], step):
                return end
            end = start + before + 1
        return 0

    def close(self) -> None:
        """Closes the file; the next write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_kept(line: bytes, step: int) -> bool:
    row = _row(line)
    return row is not None and row['step'] <= step


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b'\n') else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get('step')) is int else None


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, in order.

    Lines that are none are left out, with a warning that names them; a last one that was cut off, without.
    """
    if not path.exists():
        return []
    with path.open('rb') as file:
        lines = file.readlines()
    rows = [_row(line) for line in lines]
    rows = [row if row and isinstance(row.get('split'), str) else None for row in rows]
    damaged = [n for n, (line, row) in enumerate(zip(lines, rows, strict=True), 1) if not row and line.endswith(b'\n')]
    if damaged:
        numbers = ', '.join(map(str, damaged[:5])) + (' …' if len(damaged) > 5 else '')
        logging.warning('%s is damaged: %d lines are left out (line %s)', path, len(damaged), numbers)
    return [row for row in rows if row]
