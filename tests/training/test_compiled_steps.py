"""The train step is compiled for each length, and compilations are reported."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
import pytest
from train_fakes import fake_experiment, host, loss_of

from bertjax.data.loader import NumberedBatch
from bertjax.metrics.rows import task_values
from bertjax.training import record
from bertjax.training.compiled_steps import CompiledSteps, StepLowering, compile_steps, lower_in_two
from bertjax.training.health.goodput_clock import GoodputClock
from bertjax.training.phase import Phase, TrainStep
from bertjax.training.record import Recorder
from bertjax.training.vmapped_runs import VmappedRun
from bertjax.writers.console import TrainingConsole


class Lowered:
    """A fake lowered step; the compiled function appends its length to the state."""

    def __init__(self, length: int, events: list):
        self.length, self.events = length, events

    def compile(self):
        self.events.append(f'compile {self.length}')
        return lambda state, arrays, first, schedule, seed: ([*state, self.length], {})


def batch(length: int) -> NumberedBatch:
    """Makes a batch with one row of this length."""
    return NumberedBatch(0, 1, 0, {'input_ids': memoryview(bytes(length)).cast('B', [1, length])})


def make_steps(events: list, *, in_parallel: bool) -> CompiledSteps:
    def lower(length: int) -> Callable:
        events.append(f'lower {length}')
        return Lowered(length, events).compile

    return CompiledSteps(lower, (36, 64, 128), in_parallel=in_parallel)


def test_a_step_is_compiled_at_its_first_use():
    events = []

    @contextlib.contextmanager
    def on_compile(what: str):
        events.append(what)
        yield

    shared = make_steps(events, in_parallel=False)
    step, state = TrainStep(shared, 0.1, 0, on_compile), []
    for length in (64, 64, 36, 64):
        state, _ = step(state, batch(length))
    assert state == [64, 64, 36, 64]
    assert events == [
        'length 64 (1 of 3)', 'lower 64', 'compile 64', 'length 36 (2 of 3)', 'lower 36', 'compile 36',
    ]  # fmt: skip
    step.prepare()
    assert events[6:] == ['length 128 (3 of 3)', 'lower 128', 'compile 128']
    another = TrainStep(shared, 0.2, 1, on_compile)  # as in the next runs of a sweep
    another.prepare()
    assert another([], batch(36))[0] == [36] and len(events) == 9


def test_all_lengths_are_compiled_at_once_with_an_accelerator():
    events = []
    steps = make_steps(events, in_parallel=True)
    assert steps[64]([], {}, 0, 0.1, 0)[0] == [64] and steps[36]([], {}, 0, 0.1, 0)[0] == [36]
    deadline = time.monotonic() + 10
    while len(events) < 6 and time.monotonic() < deadline:
        time.sleep(0.001)
    lengths = (36, 64, 128)
    assert sorted(events) == sorted(f'{what} {length}' for what in ('lower', 'compile') for length in lengths)


def test_lengths_are_compiled_in_the_background_in_order_of_use():
    events, reported = [], []
    steps = make_steps(events, in_parallel=False)
    steps.compile_ahead([64, 128, 36])
    while not steps.is_ready(64):
        time.sleep(0.001)
    assert events == ['lower 64', 'compile 64']

    @contextlib.contextmanager
    def on_compile(what: str):
        reported.append(what)
        yield

    step = TrainStep(steps, 0.1, 0, on_compile)
    assert step([], batch(64))[0] == [64]
    while not steps.is_ready(36):  # after the first step, the other lengths compile in the background
        time.sleep(0.001)
    assert events[2:] == ['lower 128', 'compile 128', 'lower 36', 'compile 36']
    assert [step([], batch(length))[0] for length in (128, 36, 64)] == [[128], [36], [64]] and not reported
    steps.stop()


def test_pending_compilations_are_cancelled_when_a_run_stops(monkeypatch):
    events, release = [], threading.Event()
    steps = make_steps(events, in_parallel=False)
    monkeypatch.setattr(Lowered, 'compile', lambda self: release.wait() and self.length)
    steps.compile_ahead([64, 128])
    steps.compile_rest()
    steps.stop()
    release.set()
    assert steps[64] == 64  # this compilation was already running
    assert not steps.is_ready(128) and events == ['lower 64']
    assert steps[128] == 128 and events == ['lower 64', 'lower 128']


def test_a_background_error_is_raised_at_the_first_use():
    def lower(length: int):
        raise ValueError(f'cannot do {length}')

    steps = CompiledSteps(lower, (36, 64), in_parallel=False)
    steps.compile_ahead([64])
    with pytest.raises(ValueError, match='cannot do 64'):
        steps[64]
    steps.stop()


def test_phases_with_other_schedules_share_a_compiled_step(plain_run):
    """The numbers of a schedule are arguments. The phases of a budget therefore compile one step."""
    phase = plain_run.phase
    other = dataclasses.replace(phase, number=2, first_step=50, last_step=90, warmup_fraction=0.0, reset_optimizer=True)
    texts = [StepLowering(plain_run.setup, each).step(each.batches[each.seq_len]).as_text() for each in (phase, other)]
    assert texts[0] == texts[1]
    assert compile_steps(plain_run.setup, other, other.batches) is plain_run.programs
    parts = dataclasses.replace(phase, grad_accum_steps=2)
    assert compile_steps(plain_run.setup, parts, parts.batches) is not plain_run.programs


def test_a_phase_has_its_own_dropout_and_rates(dropout_run, fresh):
    """The loss depends on the number of the phase, the rate on the step within the phase."""

    def train(number):
        settings = dataclasses.replace(
            dropout_run.phase, number=number, first_step=50, last_step=150, warmup_fraction=0.1
        )
        phase = Phase(settings, dropout_run.setup, [VmappedRun(None, 0.5, 7)], settings.batches)
        state = dropout_run.place(fresh.replace(step=np.int32(55)))
        return host(phase.compile()(state, dropout_run.batch(0))[1])

    first, again, second = train(0), train(0), train(1)
    assert first['scalars']['learning_rate'] == second['scalars']['learning_rate'] == 0.25
    assert loss_of(first) == loss_of(again) != loss_of(second)


@pytest.mark.slow
def test_the_split_step_equals_the_single_step(dropout_run, fresh):
    lowering = StepLowering(dropout_run.setup, dropout_run.phase)
    program = lower_in_two(lowering, dropout_run.phase.batches)(dropout_run.phase.seq_len)()
    results = []
    for step in (dropout_run.program, program):
        state, metrics = dropout_run.place(fresh), []
        for number in range(3):
            batch = dropout_run.batch(number)
            state, step_metrics = step(state, batch.arrays, batch.number, *dropout_run.numbers)
            metrics.append(host(step_metrics))
        results.append((host(state), metrics))
    (single_state, single_metrics), (split_state, split_metrics) = results
    for x, y in zip(jax.tree.leaves(single_state), jax.tree.leaves(split_state), strict=True):
        np.testing.assert_array_equal(x, y)
    assert jax.tree.structure(single_metrics) == jax.tree.structure(split_metrics)
    for x, y in zip(jax.tree.leaves(single_metrics), jax.tree.leaves(split_metrics), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)  # norms are summed in another order


def test_the_progress_bar_and_a_line_report_compilation(tmp_path, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(record.time, 'perf_counter', lambda: now[0])
    console = TrainingConsole(10, 0)
    experiment = fake_experiment([tmp_path], task_values, steps=10, log_every=2)
    recorder = Recorder(experiment, console, GoodputClock(tmp_path, 0))
    status = lambda: console._progress.tasks[0].fields['status']  # noqa: E731
    assert status() == ''
    console.write({'split': 'train', 'step': 2, 'loss': 0.7, 'sequences_per_s': 9.0, 'seconds_per_step': 0.5})
    assert capsys.readouterr().out.startswith('step 2/10  loss 0.700  9 seq/s')
    for seconds in (0.5, 12.4):
        with recorder.report_compile('length 64 (1 of 3)'):
            assert status() == 'compiling length 64 (1 of 3) …'
            now[0] += seconds
        assert status() == 'loss 0.700  9 seq/s'
    assert capsys.readouterr().out == 'compiled length 64 (1 of 3) in 12 s\n'
    recorder.close()
