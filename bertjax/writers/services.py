"""The experiment trackers that rows can be sent to: what each does at the beginning, with values, and at the end.

Where they send to is said in their own ways, which are not ours to repeat: `wandb login` and WANDB_MODE,
MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID.
"""

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from bertjax.config.plain import flatten
from bertjax.errors import UserError

_NETWORK = 50.0  # seconds; less than tracker.py waits for


class Service(Protocol):
    """A tracker, for one run; all of it is called by one thread."""

    def refusal(self) -> UserError | None:
        """What the user has to do before it can send anything; None for nothing."""
        ...

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], known: str) -> str:
        """Begins a run, or continues the one `known` of an earlier process; '' for none.

        Args:
          project: where the run belongs.
          name: of the run, for people.
          folder: the workdir, for files that the tracker writes.
          config: the resolved config.
          known: what an earlier `start` returned.

        Returns:
          By what the run is found again.
        """
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends values of a step."""
        ...

    def finish(self) -> None:
        """Sends what is pending, and ends the run."""
        ...


class WandB:
    """Weights & Biases. Curves go by the value `step`: their own counter cannot go back to a checkpoint."""

    def refusal(self) -> UserError | None:
        """Without a key it would ask for one, in the middle of the training."""
        import wandb

        mode = os.environ.get('WANDB_MODE') or wandb.setup().settings.mode
        found = 'no key to log in with'
        try:
            # Whether a server takes the key, only its network tells, which no training waits for.
            if mode in ('offline', 'disabled', 'dryrun') or wandb.login(prompt=False, verify=False):
                return None
        except wandb.Error as error:
            found = ' '.join(str(error).split())
        fix = 'run `wandb login`, or set WANDB_MODE=offline'
        return UserError('config.tracker', f"'wandb' and {found}", 'a login, or offline mode', fix)

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], known: str) -> str:
        """See Service."""
        import wandb

        identity = known or secrets.token_hex(4)
        settings = wandb.Settings(
            silent=True,
            console='off',
            x_disable_stats=True,
            x_disable_meta=True,
            # Without a network it would wait for ever at the end of the process, whoever has given it up.
            init_timeout=_NETWORK,
            finish_timeout=_NETWORK,
        )
        self._run = wandb.init(
            project=project,
            name=name,
            id=identity,
            dir=folder,
            config=flatten(config),
            resume='allow',
            reinit='create_new',  # several runs of a sweep are trained together
            settings=settings,
        )
        self._run.define_metric('step')
        self._run.define_metric('*', step_metric='step')
        return identity

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Service."""
        self._run.log({**values, 'step': step})

    def finish(self) -> None:
        """See Service."""
        self._run.finish()


class MLflow:
    """MLflow, by its client: nothing global is set, so that runs of a sweep do not meet."""

    def refusal(self) -> UserError | None:
        """See Service."""
        return None

    _AT_ONCE = 100  # parameters a request, as the server allows
    _LONGEST = 500  # characters of a parameter, as every version's server takes

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], known: str) -> str:
        """See Service."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if known:
            self._client.update_run(known, status='RUNNING')
            self._id = known
            return known
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        params = [Param(_plain_key(key), str(value)[: self._LONGEST]) for key, value in flatten(config).items()]
        for first in range(0, len(params), self._AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + self._AT_ONCE])
        return self._id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Service."""
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    def finish(self) -> None:
        """See Service."""
        self._client.set_terminated(self._id)


def _plain_key(key: str) -> str:
    """MLflow's names have no brackets: `phases[0].steps` -> `phases.0.steps`."""
    return key.replace('[', '.').replace(']', '')


class Trackio:
    """Trackio, of Hugging Face; a run is known by its name there, which is made unique."""

    def refusal(self) -> UserError | None:
        """See Service."""
        return None

    def start(self, project: str, name: str, folder: str, config: Mapping[str, Any], known: str) -> str:
        """See Service."""
        import trackio

        identity = known or f'{name}-{secrets.token_hex(3)}'
        self._run = trackio.init(
            project,
            name=identity,
            config=flatten(config),
            resume='allow',
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return identity

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Service."""
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """See Service."""
        self._run.finish()


SERVICES: dict[str, type[Service]] = {'wandb': WandB, 'mlflow': MLflow, 'trackio': Trackio}
