"""Append-only JSON lines; on resume, cut back to the step of the checkpoint."""

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

    def __str__(self) -> str:
        return str(self.path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one line and hands it to the operating system: it survives a kill of this process."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open('a', encoding='utf-8')
        self._file.write(json.dumps(row, ensure_ascii=False) + '\n')
        self._file.flush()

    def forget_after(self, step: int) -> int:
        """Cuts the lines whose step is greater than `step`, and a half-written last one. Returns the bytes cut.

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


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, in order; none where there is no file. A last line that was cut off is left out."""
    if not path.exists():
        return []
    with path.open(encoding='utf-8') as file:
        return [json.loads(line) for line in file if line.endswith('\n')]


def _is_kept(line: bytes, step: int) -> bool:
    try:
        return line.endswith(b'\n') and json.loads(line)['step'] <= step
    except (ValueError, KeyError, TypeError):
        return False
