"""A writer that hands rows to an experiment tracker, in a thread of its own: a network never keeps a step waiting."""

import contextlib
import dataclasses
import importlib.util
import json
import math
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
from bertjax.writers.writer import Row

FILE = 'tracker.json'  # in the workdir: which run of which tracker it is
_PATIENCE = 60.0  # seconds that the end of a training waits for what is still to be sent
_WAITING = 100_000  # rows that may wait for a tracker that does not answer


@dataclasses.dataclass(frozen=True)
class Tracking:
    """config.tracker, config.tracker_project and config.tracker_run."""

    service: str
    project: str
    run: str

    def check(self) -> None:
        """Before anything is computed.

        Raises:
          UserError: the package of the tracker is not installed, or does not know where to send to.
        """
        if not self.service:
            return
        if importlib.util.find_spec(self.service) is None:
            fix = f"install the extra '{self.service}': pip install -e '.[{self.service}]'"
            raise UserError('config.tracker', f'no {self.service}', f'the package {self.service}', fix)
        refusal = SERVICES[self.service]().refusal()
        if refusal:
            raise refusal

    def writer(self, folder: pathlib.Path, name: str, config: Mapping[str, Any]) -> 'Tracker':
        """The writer of a run.

        Args:
          folder: where its rows go, the workdir or a trial's.
          name: of the run in the tracker.
          config: the resolved config.
        """
        return Tracker(SERVICES[self.service](), self, folder, name, config)


class Tracker:
    """Sends the numbers of each row as `SPLIT/NAME`, from the first row on; a later process continues the same run.

    Rows between the checkpoint that a training continues from and its kill are sent twice: trackers only append.
    """

    def __init__(
        self, service: Service, tracking: Tracking, folder: pathlib.Path, name: str, config: Mapping[str, Any]
    ):
        self._service, self._tracking, self._folder, self._name, self._config = service, tracking, folder, name, config
        self._fresh = False
        self._rows: queue.Queue[Row | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __str__(self) -> str:
        return f'the tracker {self._tracking.service}'

    def truncate_after(self, step: int) -> None:
        """A training that begins anew is another run; what was sent of later steps stays."""
        self._fresh = step < 0

    def write(self, row: Row) -> None:
        """Hands a row to the thread.

        Raises:
          whatever the tracker raised since the row before, or queue.Full.
        """
        self._raise()
        if self._thread is None:
            # A daemon: the process ends without it.
            self._thread = threading.Thread(target=self._send_all, name=f'tracker of {self._name}', daemon=True)
            self._thread.start()
        self._rows.put_nowait(row)

    def sync(self) -> None:
        """Does nothing: when what was sent is safe, only the tracker knows."""

    def close(self) -> None:
        """Ends the tracker's run.

        Raises:
          whatever the tracker raised, or TimeoutError where it does not take the rows.
        """
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._rows.put_nowait(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            raise TimeoutError(f'it took no row for {_PATIENCE:.0f} s')
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_all(self) -> None:
        try:
            self._start()
            while (row := self._rows.get()) is not None:
                self._service.log(row['step'], _numbers(row))
            self._service.finish()
        except BaseException as error:  # raised again where the rows come from
            self._failure = error

    def _start(self) -> None:
        path = self._folder / FILE
        mine = {'tracker': self._tracking.service, 'project': self._tracking.project}
        known = read_json_or_none(path, lambda facts: {**facts, 'run': str(facts['run'])})
        same = known is not None and not self._fresh and {**known, **mine} == known
        run = self._service.start(
            self._tracking.project, self._name, os.fspath(self._folder), self._config, known['run'] if same else ''
        )
        if not same or run != known['run']:
            write_atomic(path, json.dumps({**mine, 'run': run}, indent=2) + '\n')


def _numbers(row: Row) -> dict[str, float]:
    """What can be drawn, by `SPLIT/NAME`."""
    values = {name: x for name, x in row.items() if isinstance(x, int | float) and name not in ('step', 'phase')}
    return {f'{row["split"]}/{name}': float(x) for name, x in values.items() if math.isfinite(x)}
