"""A writer that sends rows to Weights & Biases, MLflow or Trackio from a thread, so that a step never waits for it."""

import contextlib
import importlib.util
import json
import os
import pathlib
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from bertjax.config.plain import flatten
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.writers.writer import MetricRow, Writer, row_numbers

FILE = 'tracker.json'  # the file in a workdir that records the tracker and the id of the run in the tracker
_CLOSE_SECONDS = 60.0  # the longest wait for unsent rows at the end of a run
_NETWORK_SECONDS = 50.0  # the longest wait of wandb for the network; less than _CLOSE_SECONDS
_MAX_QUEUED = 100_000  # the maximum number of rows that wait while a tracker does not answer


class Service(Protocol):
    """The client of a tracker for one run. `start`, `log` and `finish` are called by the same thread.

    The user chooses the server in the standard way of the tracker: by `wandb login` and WANDB_MODE, by
    MLFLOW_TRACKING_URI, or by TRACKIO_SPACE_ID.
    """

    def check(self) -> None:
        """Raises a UserError if the user must do something before the tracker can be used."""

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], run_id: str) -> str:
        """Starts a run with a display name, or continues the run `run_id` of an earlier process. Returns its id.

        `run_id` is '' for a new run. `folder` is the workdir, for files that the tracker writes.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values of a step."""

    def finish(self) -> None:
        """Sends pending values and ends the run."""


class WandB(Service):
    """Weights & Biases. The x-axis is the value `step`, because W&B's own counter cannot go back to a checkpoint."""

    def check(self) -> None:
        """Raises a UserError if there is no API key, because wandb would prompt for it during training."""
        import wandb

        mode = os.environ.get('WANDB_MODE') or wandb.setup().settings.mode
        found = 'no API key to log in with'
        try:
            # verify=False: do not wait for the network to check the key.
            if mode in ('offline', 'disabled', 'dryrun') or wandb.login(prompt=False, verify=False):
                return
        except wandb.Error as error:
            found = ' '.join(str(error).split())
        fix = 'run `wandb login`, or set WANDB_MODE=offline'
        raise UserError('config.tracker', f"'wandb' and {found}", 'a login, or offline mode', fix)

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], run_id: str) -> str:
        import wandb

        run_id = run_id or secrets.token_hex(4)
        settings = wandb.Settings(
            silent=True,
            console='off',
            x_disable_stats=True,
            x_disable_meta=True,
            # Without a network and without these timeouts, the process would never end.
            init_timeout=_NETWORK_SECONDS,
            finish_timeout=_NETWORK_SECONDS,
        )
        self._run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            dir=folder,
            config=flatten(config),
            resume='allow',
            reinit='create_new',  # the runs of a sweep train at the same time
            settings=settings,
        )
        self._run.define_metric('step')
        self._run.define_metric('*', step_metric='step')
        return run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, 'step': step})

    def finish(self) -> None:
        self._run.finish()


class MLflow(Service):
    """MLflow. Its client has no global state, so the runs of a sweep do not interfere."""

    _MAX_PARAMS = 100  # the server's limit on the number of parameters in a request
    _MAX_CHARACTERS = 500  # the maximum length of a parameter's value that every server version accepts

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], run_id: str) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if run_id:
            self._client.update_run(run_id, status='RUNNING')
            self._id = run_id
            return run_id
        self._id = self._client.create_run(self._experiment(project), run_name=name).info.run_id
        # MLflow does not allow brackets in names such as `phases[0].steps`.
        values = {key.replace('[', '.').replace(']', ''): str(value) for key, value in flatten(config).items()}
        params = [Param(key, value[: self._MAX_CHARACTERS]) for key, value in values.items()]
        for first in range(0, len(params), self._MAX_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + self._MAX_PARAMS])
        return self._id

    def _experiment(self, project: str) -> str:
        from mlflow import MlflowException

        try:
            return self._client.create_experiment(project)
        except MlflowException:  # it exists, or a run of the sweep has created it meanwhile
            existing = self._client.get_experiment_by_name(project)
            if existing is None:
                raise
            return existing.experiment_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class Trackio(Service):
    """Hugging Face's Trackio. The id of a run is its name with a random suffix."""

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], run_id: str) -> str:
        import trackio

        run_id = run_id or f'{name}-{secrets.token_hex(3)}'
        self._run = trackio.init(
            project,
            name=run_id,
            config=flatten(config),
            resume='allow',
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        self._run.finish()


SERVICES: dict[str, type[Service]] = {'wandb': WandB, 'mlflow': MLflow, 'trackio': Trackio}


def check_tracker(name: str) -> None:
    """Raises a UserError if the package of the tracker `name` is not installed, or if the tracker needs a login."""
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
        """Removes nothing, because trackers can only append. If `step` is below 0, the next row starts another run."""
        self._fresh = step < 0

    def write(self, row: MetricRow) -> None:
        """Passes a row to the thread. Raises any error of the tracker since the previous row, or queue.Full."""
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name=f'tracker of {self._name}', daemon=True)
            self._thread.start()
        self._rows.put_nowait(row)

    def close(self) -> None:
        """Ends the tracker's run. Raises any error of the tracker, or TimeoutError if it is too slow."""
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
