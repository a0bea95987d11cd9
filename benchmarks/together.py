"""Seeds trained together by `vmap` beside the same seeds one after another, in turn, on what JAX finds.

    python benchmarks/together.py --config=configs/glue.py:rte --config.init=DIR --config.data=DIR --members=4

Both train on the same rows with the programs of `config.sweep`: `sweep.together=1` and `sweep.together=MEMBERS`. Prints
what compiling takes, steps of a member a second, and the ratio: the gain of training together.
"""

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import app, flags
from ml_collections import config_flags

from bertjax.data.features import Features
from bertjax.data.loader import Loader
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.runs._steps import compile_step, lower_step
from bertjax.runs._task import data_from_source, total_steps
from bertjax.runs._tuning import Tuning, prepare
from bertjax.train.together import StackedExamples, Step, members_template, stack_states

_CONFIG = config_flags.DEFINE_config_file('config', None, 'As of bertjax.main.', lock_config=True)
_MEMBERS = flags.DEFINE_integer('members', 4, 'How many at once.')
_STEPS = flags.DEFINE_integer('steps', 8, 'Steps of each member in a round.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Rounds.')


class Run:
    """One run by itself, or several together: what `config.sweep` would train with these seeds."""

    def __init__(self, tuning: Tuning, features: Features, step: Step, seeds: Sequence[int], *, together: bool):
        config, mesh = tuning.config, tuning.mesh
        self._step = step
        examples = [tuning.examples(features, seed) for seed in seeds]
        states = [tuning.fresh_state(seed)[0] for seed in seeds]
        numbers = [np.full(len(seeds), config.learning_rate, np.float32), np.asarray(seeds, np.uint32)]
        if together:
            template = members_template(tuning.state, len(seeds))
            with mesh_context(mesh):
                self._state = jax.device_put(stack_states(states), jax.tree.map(lambda x: x.sharding, template))
            source = StackedExamples(examples)
        else:
            (self._state,), (source,), numbers = states, examples, [x[0] for x in numbers]
        self._numbers = jax.device_put(numbers, replicated(mesh))
        self._loader = Loader(source, first=0, batch_size=config.batch_size, sharding=batch_sharding(mesh))

    def seconds(self, steps: int) -> float:
        """Of the next steps."""
        start = time.perf_counter()
        for _ in range(steps):
            self._state, metrics = self._step(self._state, next(self._loader).arrays, *self._numbers)
        jax.block_until_ready((self._state, metrics))
        return time.perf_counter() - start

    def close(self) -> None:
        """Ends its loader."""
        self._loader.close()


def compiled(tuning: Tuning, features: Features, members: int) -> tuple[Step, float]:
    """The step of so many members (0: of a run by itself) and the seconds that compiling took."""
    examples = tuning.examples(features, 0)
    total = total_steps(tuning.config, examples.batches)
    lowered = lower_step(tuning, examples.abstract_batches(), total, members=members)
    start = time.perf_counter()
    return compile_step(lowered), time.perf_counter() - start


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    config, members = _CONFIG.value, _MEMBERS.value
    data = data_from_source(config, pathlib.Path(tempfile.mkdtemp()))
    train, tuning = prepare(data, make_mesh(config.mesh, claim_devices()))
    features, seeds, steps = train.features, range(members), _STEPS.value
    one, compiling_one = compiled(tuning, features, 0)
    all_at_once, compiling_all = compiled(tuning, features, members)
    with contextlib.ExitStack() as stack:
        alone = [Run(tuning, features, one, [seed], together=False) for seed in seeds]
        together = Run(tuning, features, all_at_once, seeds, together=True)
        for run in (*alone, together):
            stack.callback(run.close)
            run.seconds(steps)  # warms up
        rounds = [(sum(run.seconds(steps) for run in alone), together.seconds(steps)) for _ in range(_ROUNDS.value)]
    encoder, device = tuning.data.encoder, jax.devices()[0]
    print(
        f'{len(jax.devices())} x {device.device_kind}, jax {jax.__version__}; {encoder.num_layers} layers, width '
        f'{encoder.width}, batches of {config.batch_size} padded to {", ".join(map(str, tuning.shapes))}'
    )
    for name, compiling, column in (('one after another', compiling_one, 0), ('together', compiling_all, 1)):
        rate = statistics.median(members * steps / row[column] for row in rounds)
        print(f'{members} {name:>17}: {rate:7.2f} steps of a member a second; compiling took {compiling:.1f} s')
    print(f'together {statistics.median(a / b for a, b in rounds):.2f} times as fast')


if __name__ == '__main__':
    app.run(main)
