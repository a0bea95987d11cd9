"""A writer that sends rows to an experiment tracker from a background thread, so that a step never waits for it."""

import contextlib
import importlib.util
import json
import os
import pathlib
import queue
import threading
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.writers.services import SERVICES, Service
from bertjax.writers.writer import MetricRow, Writer, row_numbers

FILE = 'tracker.json'  # in the workdir; identifies the tracker and its run
_CLOSE_SECONDS = 60.0  # the longest wait for unsent rows at the end of a run
_MAX_QUEUED = 100_000  # the maximum number of rows that wait while a tracker does not answer


def check_tracker(name: str) -> None:
    """Raises a UserError if the package of the tracker config.tracker is not installed, or if it needs a login."""
    if not name:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # for example, a folder `wandb` in which wandb saves its runs
        fix = f"install the extra '{name}': pip install 'bertjax[{name}]'"
        raise UserError('config.tracker', f'no {name}', f'the package {name}', fix)
    SERVICES[name]().check()


class Tracker(Writer):
    """A writer that sends the numbers of each row as `SPLIT/NAME`. A resumed run is continued in the tracker.

    After a kill, the rows since the last checkpoint are sent twice, because trackers can only append.

    Args:
      tracker, project: config.tracker and config.tracker_project.
      folder: The workdir of the run or trial.
      name: The name of the run in the tracker.
    """

    def __init__(self, tracker: str, project: str, folder: pathlib.Path, name: str, config: Mapping[str, Any]):
        self._service: Service = SERVICES[tracker]()
        self._identity = {'tracker': tracker, 'project': project}
        self._folder, self._name, self._config = folder, name, config
        self._fresh = False
        self._rows: queue.Queue[MetricRow | None] = queue.Queue(_MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __str__(self) -> str:
        return f'the tracker {self._identity["tracker"]}'

    def truncate_after(self, step: int) -> None:
        """Removes nothing, because trackers can only append. If `step` is below 0, the next row starts a new run."""
        self._fresh = step < 0

    def write(self, row: MetricRow) -> None:
        """Passes a row to the thread. Raises any error of the tracker since the previous row, or queue.Full."""
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name=f'tracker of {self._name}', daemon=True)
            self._thread.start()
        self._rows.put_nowait(row)

    def close(self) -> None:
        """Ends the tracker's run. Raises any error of the tracker, or TimeoutError if it does not accept all rows."""
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f'it did not accept all rows within {_CLOSE_SECONDS:.0f} s')
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_all(self) -> None:
        try:
            self._start()
            while (row := self._rows.get()) is not None:
                self._service.log(row['step'], row_numbers(row))
            self._service.finish()
        except BaseException as error:  # raised again in the thread that writes rows
            self._failure = error

    def _start(self) -> None:
        path = self._folder / FILE
        previous = read_json_or_none(path, lambda facts: {**facts, 'run': str(facts['run'])})
        is_same = previous is not None and not self._fresh and {**previous, **self._identity} == previous
        earlier_run = previous['run'] if is_same else ''
        run = self._service.start(
            self._identity['project'], self._name, os.fspath(self._folder), self._config, earlier_run
        )
        if not is_same or run != previous['run']:
            write_atomic(path, json.dumps({**self._identity, 'run': run}, indent=2) + '\n')
