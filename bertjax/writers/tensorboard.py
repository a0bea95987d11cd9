"""TensorBoard event files, written without TensorFlow."""

import os
from collections.abc import Mapping
from typing import Any

from tensorboardX import SummaryWriter


class TensorBoard:
    """Scalars `SPLIT/NAME` of each row, opened at the first one."""

    def __init__(self, directory: str | os.PathLike):
        self._directory = os.fspath(directory)
        self._writer: SummaryWriter | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes the numbers of a row of metrics.jsonl at its step."""
        if self._writer is None:
            # purge_step: after a resume, TensorBoard hides what an earlier process wrote from this step on.
            self._writer = SummaryWriter(self._directory, purge_step=row['step'], flush_secs=30)
        for name, value in row.items():
            if isinstance(value, (int, float)) and name not in ('step', 'phase'):
                self._writer.add_scalar(f'{row["split"]}/{name}', value, row['step'])

    def close(self) -> None:
        """Flushes what is pending."""
        if self._writer is not None:
            self._writer.close()
