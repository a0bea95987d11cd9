"""The clients of experiment trackers: Weights & Biases, MLflow, Trackio.

The user chooses the server in the standard way of the tracker: by `wandb login` and WANDB_MODE, by MLFLOW_TRACKING_URI,
or by TRACKIO_SPACE_ID.
"""

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from bertjax.config.plain import flatten
from bertjax.errors import UserError

_NETWORK_SECONDS = 50.0  # less than the timeout of tracker.py


class Service(Protocol):
    """The client of a tracker for one run. `start`, `log` and `finish` are called by the same thread."""

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
