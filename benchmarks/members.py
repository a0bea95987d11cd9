"""Training several seeds together with `vmap`, compared with training them one after another, on the default devices.

    python benchmarks/members.py --config=configs/glue.py:rte --config.init=DIR --config.data=DIR --members=4

Both ways train on the same rows with the programs of `config.sweep`: `sweep.together=1` and `sweep.together=MEMBERS`.
The script prints the compile times, the steps of all seeds per second, and the ratio of these rates.
"""

import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time

import jax
from absl import app, flags
from ml_collections import config_flags

from bertjax.data.length_buckets import MAX_LENGTHS
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.finetune.sweep import TrialGroup
from bertjax.finetune.task_data import data_from_source
from bertjax.finetune.task_model import prepare
from bertjax.finetune.trials import make_trials
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context

_CONFIG = config_flags.DEFINE_config_file('config', None, 'See --config of bertjax.main.', lock_config=True)
_MEMBERS = flags.DEFINE_integer('members', 4, 'The number of seeds.')
_STEPS = flags.DEFINE_integer('steps', 8, 'The number of steps of each member per round.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'The number of rounds.')


class Run:
    """The training of a group of trials, as in `config.sweep`."""

    def __init__(self, group: TrialGroup):
        (phase,) = group.phases()
        start = time.perf_counter()
        self._step = phase.compile()
        self._step.prepare()
        self.compiling = time.perf_counter() - start
        with mesh_context(group.setup.mesh):
            self._state = group.init_state()
        self._loader = phase.load(0)

    def seconds(self, steps: int) -> float:
        """Runs the next steps, and returns the elapsed seconds."""
        start = time.perf_counter()
        for _ in range(steps):
            self._state, metrics = self._step(self._state, next(self._loader))
        jax.block_until_ready((self._state, metrics))
        return time.perf_counter() - start

    def close(self) -> None:
        self._loader.close()


def with_seeds(settings: FinetuningSettings, members: int) -> FinetuningSettings:
    """Returns the settings with a sweep over `members` seeds."""
    return dataclasses.replace(settings, sweep=dataclasses.replace(settings.sweep, seeds=tuple(range(members))))


def main(argv: list[str]) -> None:
    del argv
    members, steps = _MEMBERS.value, _STEPS.value
    folder, settings = pathlib.Path(tempfile.mkdtemp()), with_seeds(finetuning_settings(_CONFIG.value), members)
    data = data_from_source(settings, folder)
    mesh, lengths = make_mesh(settings.mesh_axes, claim_devices()), settings.max_padded_lengths or MAX_LENGTHS
    model = prepare(data, mesh, lengths, selection_key='config.sweep')
    trials = make_trials(settings)
    with contextlib.ExitStack() as stack:
        alone = [Run(TrialGroup([trial], model, folder)) for trial in trials]
        together = Run(TrialGroup(trials, model, folder))
        for run in (*alone, together):
            stack.callback(run.close)
            run.seconds(steps)  # warms up
        rounds = [(sum(run.seconds(steps) for run in alone), together.seconds(steps)) for _ in range(_ROUNDS.value)]
    compiling_one, compiling_all = alone[0].compiling, together.compiling
    encoder, device = data.encoder, jax.devices()[0]
    print(
        f'{len(jax.devices())} x {device.device_kind}, jax {jax.__version__}; {encoder.num_layers} layers, width '
        f'{encoder.width}, batches of {settings.batch_size} padded to {", ".join(map(str, model.shapes))}'
    )
    for name, compiling, column in (('one after another', compiling_one, 0), ('together', compiling_all, 1)):
        rate = statistics.median(members * steps / row[column] for row in rounds)
        print(f'{members} {name:>17}: {rate:7.2f} steps of all seeds per second; compilation took {compiling:.1f} s')
    print(f'together {statistics.median(a / b for a, b in rounds):.2f} times as fast')


if __name__ == '__main__':
    app.run(main)
