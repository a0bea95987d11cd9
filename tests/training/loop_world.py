"""A run of two phases whose train step only counts, and a clock that tests move."""

import contextlib
import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
from train_fakes import fake_experiment

from bertjax.checkpoint.position import Position
from bertjax.data.loader import NumberedBatch
from bertjax.metrics.rows import pretraining_values
from bertjax.training import loop
from bertjax.training.early_stopping import STATE_KEY, EarlyStopping
from bertjax.training.health.goodput_clock import GoodputClock
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.record import Recorder
from bertjax.training.setup import PhaseSettings
from bertjax.training.state import TrainState
from bertjax.writers.console import TrainingConsole

ROWS = 4
STEP_SECONDS, EVALUATION_SECONDS, SAVE_SECONDS = 1.0, 100.0, 50.0


class Clock:
    """A clock that moves only when a test changes `now`."""

    now = 0.0

    def perf_counter(self):
        return self.now

    time = perf_counter


class Batches:
    """Batches of consecutive example numbers, in place of the loader."""

    def __init__(self, first, on_close):
        self.first, self.close = first, on_close

    def __next__(self):
        first, self.first = self.first, self.first + ROWS
        return NumberedBatch(first, ROWS, np.uint32(first), {'numbers': np.arange(first, first + ROWS)})


class Heldout:
    """An evaluator whose loss is the value of the parameter."""

    split = 'heldout'

    def __init__(self, world):
        self.world = world

    def run(self, params, on_compile):
        self.world.clock.now += EVALUATION_SECONDS
        self.world.events.append('evaluate')
        values = pretraining_values({'mlm_loss': (float(params['kernel']), 1.0)})
        return values, values['loss']


@dataclasses.dataclass
class CountingPhase:
    """A phase with the interface that the loop needs, which trains with the step of `World`."""

    world: 'World'
    settings: PhaseSettings
    evaluator: Heldout | None
    may_be_best: bool = True
    other_evaluators = ()
    flops_per_row = 1.0

    def begin(self, state):
        self.world.events.append(f'begin {self.settings.number}')
        return state

    def compile(self, on_compile):
        return self.world.step

    def compiling(self, first, steps):
        return contextlib.nullcontext()

    def load(self, first):
        number, events = self.settings.number, self.world.events
        events.append(f'load {number} from {first}')
        return Batches(first, lambda: events.append(f'close {number}'))


class World(Interrupt):
    """A run with two phases that records events; `stop_at` is the step of a signal.

    The first phase ends at step ends[0]. The second phase has a part that ends at each later entry.
    """

    def __init__(
        self, folder, clock, bad_steps=(), stop_at=None, log_every=2, eval_every=3, checkpoint_every=4, minutes=0,
        ends=(6, 10),
    ):  # fmt: skip
        super().__init__()
        self.events, self.saved, self.done = [], {}, 0
        self.clock, self.bad_steps, self.stop_at = clock, set(bad_steps), stop_at
        self.folder, self.log_every, self.ends = folder, log_every, ends
        self.patience, self.writing, self.profiled, self.evaluate_first = EarlyStopping(0), False, range(0), True
        self.options = {'eval_every': eval_every, 'checkpoint_every': checkpoint_every, 'checkpoint_minutes': minutes}

    def phase(self, number, first_step, last_step):
        options = {'schedule_steps': (self.ends[0], self.ends[-1]) if number else None}
        numbers = PhaseSettings(number, first_step, last_step, ROWS, 1, 'constant', 0.0, 1.0, **options)
        return CountingPhase(self, numbers, Heldout(self))

    def step(self, state, batch):
        """The loss is twice the number of the step; the parameter is the sum of the example numbers."""
        self.clock.now += STEP_SECONDS
        self.done = int(state.step) + 1
        self.events.append(f'step {self.done}: {batch.arrays["numbers"][0]}')
        bad = self.done in self.bad_steps
        new = state.replace(
            step=state.step + 1,
            params={'kernel': state.params['kernel'] + (0 if bad else jnp.float32(batch.arrays['numbers'].sum()))},
            skipped=state.skipped + bad,
            skipped_in_row=state.skipped_in_row + 1 if bad else jnp.int32(0),
        )
        loss = jnp.float32(np.nan if bad else 10.0 * self.done)
        scalars = {
            'grad_norm': jnp.float32(self.done), 'learning_rate': jnp.float32(0.5), 'skipped': new.skipped,
            'skipped_in_row': new.skipped_in_row, 'tokens': jnp.int32(ROWS * 8),
        }  # fmt: skip
        return new, {'sums': {'mlm_loss': (loss, jnp.float32(5))}, 'scalars': scalars}

    def save(self, state, position, config, loss):
        early_stopping = config.get(STATE_KEY)
        assert config == {**self.options, **({STATE_KEY: early_stopping} if self.patience.limit else {})}
        self.clock.now += SAVE_SECONDS
        self.events.append(f'save {position.step}')
        self.saved[position.step] = (jax.tree.map(jnp.copy, state), position, loss)

    def wait(self):
        self.events.append('saved')

    def requested(self):
        return self.stop_at is not None and self.done >= self.stop_at

    def run(self, position=None, state=None):
        position = position or Position()
        zero = jnp.int32(0)
        state = state or TrainState(zero, {'kernel': jnp.float32(0)}, {}, zero, zero)
        options = {
            'steps': self.ends[-1],
            'log_every': self.log_every,
            'evaluate_first': self.evaluate_first,
            **self.options,
        }
        experiment = fake_experiment([self.folder], pretraining_values, self.options, **options)
        run_clock = GoodputClock(self.folder, position.step)
        recorder = Recorder(experiment, TrainingConsole(10, 0), run_clock, profiled=self.profiled)
        recorder.truncate_after(position.step if position.step else -1)
        try:
            parts = [(0, 0, self.ends[0]), *((1, *part) for part in itertools.pairwise(self.ends))]
            phases = [self.phase(*part) for part in parts]
            return loop.Loop(experiment, phases, recorder, self, self, self.patience).run(state, position)
        finally:
            recorder.close()
            recorder.run_clock.close()

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def rows(self, split):
        return [row for row in self.lines('metrics.jsonl') if row['split'] == split]
