"""How far a build is: a bar on a terminal, else a line of log now and then."""

import sys
import time

from absl import logging
from rich import progress as rich_progress

LOG_EVERY = 20.0  # Seconds.


class Progress:
    """Counts documents and megabytes as stored; use it in a `with` block.

    Args:
      total: bytes (or records) to come.
      shown: False is silent.
    """

    def __init__(self, total: int, *, shown: bool):
        self._total, self._shown = max(total, 1), shown
        self._documents = self._size = 0
        self._began = self._told = time.monotonic()
        self._bar = None
        if shown and sys.stderr.isatty():
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn('Reading the corpus'),
                rich_progress.BarColumn(),
                rich_progress.TextColumn('{task.fields[documents]:,} documents'),
                rich_progress.DownloadColumn(),
                rich_progress.TransferSpeedColumn(),
                rich_progress.TimeRemainingColumn(),
                transient=True,
            )
            self._task = self._bar.add_task('', total=self._total, documents=0)

    def __enter__(self) -> 'Progress':
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, documents: int, size: int) -> None:
        """Adds to the counts."""
        self.at(self._documents + documents, self._size + size)

    def at(self, documents: int, size: int) -> None:
        """Sets the counts."""
        self._documents, self._size = documents, size
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=size, documents=documents)
        elif self._shown and now - self._told > LOG_EVERY:
            self._told = now
            rate = size / (now - self._began)
            left = (self._total - size) / rate if rate else 0
            logging.info(
                'Corpus: %d documents, %.0f of %.0f MB, %.1f MB/s, about %.0f s left',
                documents, size / 1e6, self._total / 1e6, rate / 1e6, left,
            )  # fmt: skip
