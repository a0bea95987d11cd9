"""JSON lines that only grow, and that forget what lies beyond the step of a restored checkpoint."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any


class JsonLines:
    """An append-only file of one JSON object a line, each with a `step` that does not fall from line to line."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self._file = None

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one line and hands it to the operating system: it survives a kill of this process."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open('a', encoding='utf-8')
        self._file.write(json.dumps(row, ensure_ascii=False) + '\n')
        self._file.flush()

    def forget_after(self, step: int) -> int:
        """Cuts the lines whose step is greater than `step`, and a half-written last one. Returns bytes cut.

        Reads backwards from the end, so that the cost is that of what is cut and not of what is kept; the cut itself
        is one truncation, which is whole or not at all.
        """
        self.close()
        if not self.path.exists():
            return 0
        with self.path.open('r+b') as file:
            size = file.seek(0, os.SEEK_END)
            keep = self._kept_size(file, size, step)
            if keep < size:
                file.truncate(keep)
            return size - keep

    @staticmethod
    def _kept_size(file: Any, size: int, step: int, block: int = 1 << 16) -> int:
        start, tail = size, b''  # tail = file[start:end], where end is the first byte not yet decided
        end = size
        while end > 0:
            while start > 0 and tail.count(b'\n', 0, max(len(tail) - 1, 0)) == 0:
                grown = min(block, start)
                start -= grown
                file.seek(start)
                tail = file.read(grown) + tail
            cut = tail.rfind(b'\n', 0, len(tail) - 1) + 1  # start of the last line within the tail
            line = tail[cut:]
            try:
                whole = line.endswith(b'\n') and json.loads(line)['step'] <= step
            except (ValueError, KeyError, TypeError):
                whole = False
            if whole:
                return end
            end -= len(line)
            tail = tail[:cut]
        return 0

    def close(self) -> None:
        """Closes the file; the next write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
