"""Goodput, slow steps, hangs and traces, with a train step that only counts."""

import json
import pathlib
import re
import threading
import time
from collections.abc import Iterator

import jax
import pytest
from loop_world import EVALUATION_SECONDS, SAVE_SECONDS, STEP_SECONDS, Clock, World

from bertjax.errors import PreemptedError, UserError
from bertjax.training import loop
from bertjax.training.health import goodput_clock, profiler, watchdog
from bertjax.training.health.goodput import read_goodput
from bertjax.training.health.goodput_clock import COMPILE, DATA, EVALUATION, SAVE, START, STEP, TIMES, GoodputClock
from bertjax.training.health.profiler import profiled_steps
from bertjax.training.health.watchdog import HANG, LONG_FACTOR, watch_for_hangs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    for module in (loop, goodput_clock):
        monkeypatch.setattr(module, 'time', clock)
    token = goodput_clock._recorded_until.set(0.0)
    yield clock
    goodput_clock._recorded_until.reset(token)


def lines(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / TIMES).read_text().splitlines()]


def test_goodput_counts_the_cost_of_a_stop_and_a_kill(tmp_path: pathlib.Path, clock: Clock):
    """The run has ten steps of a second; it stops at 5 and resumes from 4, so step 5 is done twice."""
    first = World(tmp_path, clock, stop_at=5, eval_every=3)
    with pytest.raises(PreemptedError):
        first.run()
    with (tmp_path / TIMES).open('a') as log:
        log.write('{"step": 9, "after": 5, "sec')  # an incomplete row, as after a kill
    clock.now += 1000  # time between the processes
    goodput_clock.begin_recording()
    goodput_clock._recorded_until.set(clock.now - 7)  # the process started 7 s ago
    state, position, _ = first.saved[4]
    World(tmp_path, clock, eval_every=0).run(position, state)

    goodput = read_goodput(tmp_path)
    assert goodput.processes == 2
    evaluations, saves = 2 + 1, 2 + 2  # at steps 0, 3 and 10; at steps 4, 5, 8 and 10
    assert goodput.seconds == pytest.approx(
        {
            STEP: 10 * STEP_SECONDS, 'lost': STEP_SECONDS, START: 7.0,
            EVALUATION: evaluations * EVALUATION_SECONDS, SAVE: saves * SAVE_SECONDS,
        }
    )  # fmt: skip
    assert goodput.share == pytest.approx(10 / 518)
    assert str(goodput).startswith('1.9% of 0:08:38 of 2 processes; the rest: evaluation 57.9%, save 38.6%,')
    assert goodput.facts()['share'] == 0.0193


@pytest.mark.parametrize(('hours', 'least'), [(6, 0.98), (2, 0.95)])
def test_a_checkpoint_every_ten_minutes_is_enough(tmp_path: pathlib.Path, hours: float, least: float):
    """A day with steps of a second and a kill every few hours, halfway between two checkpoints.

    The times of a save and of a start are the measured ones in docs/troubleshooting.md.
    """
    with (tmp_path / TIMES).open('w') as log:

        def row(after: int, step: int, /, **seconds: float) -> None:
            began = {'began': 0.0} if 'restore' in seconds else {}
            log.write(json.dumps({'step': step, 'after': after, **began, 'seconds': seconds}) + '\n')

        saved, now = 0, 0.0
        while now < 24 * 3600:
            row(saved, saved, start=4.9, restore=6.0, compile=35.0)
            for _ in range(int(6 * hours)):
                row(saved, saved + 600, step=600.0, save=0.22)
                saved += 600
            row(saved, saved + 310, step=310.0)
            now += 3600 * hours + 310 + 46
    goodput = read_goodput(tmp_path)
    assert goodput.share >= least and goodput.processes == pytest.approx(24 / hours, abs=1)
    assert goodput.seconds['lost'] == 310 * (
        goodput.processes - 1
    )  # the steps before the last kill are not lost yet: no process has resumed


def test_goodput_ignores_damaged_rows(tmp_path: pathlib.Path):
    assert read_goodput(tmp_path) is None
    row = '{"step": 4, "after": 0, "began": 1.0, "seconds": {"step": 3.0, "data": 1.0}}'
    damaged = ['{', '[]', 'null', '{"step": "x", "after": 0, "seconds": {}}', '{"seconds": {"step": "?"}}', '\x00\xff']
    (tmp_path / TIMES).write_text('\n'.join([*damaged, row, *damaged]), encoding='latin-1')
    assert str(read_goodput(tmp_path)) == '75.0% of 0:00:04; the rest: waiting for data 25.0%'


def test_the_start_of_a_phase_is_not_a_hang(tmp_path: pathlib.Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """Preparing the pairs of a corpus may take long, but it is neither a hang nor a step."""
    world, clocks = World(tmp_path, clock, eval_every=0, checkpoint_every=0), []

    class RecordedClock(GoodputClock):
        def prepare(self):
            super().prepare()
            clocks.append(self)

    monkeypatch.setattr('loop_world.GoodputClock', RecordedClock)
    activities, make_phase = [], world.phase

    def slow_phase(*arguments):
        phase = make_phase(*arguments)
        load = phase.load

        def slow_load(first):
            activities.append(clocks[-1].doing)
            clock.now += 3600
            return load(first)

        phase.load = slow_load
        return phase

    monkeypatch.setattr(world, 'phase', slow_phase)
    world.run()
    assert activities == [START, START] and read_goodput(tmp_path).seconds[START] == 7200
    assert read_goodput(tmp_path).seconds[STEP] == 10 and read_goodput(tmp_path).slow == []


def test_a_finished_run_adds_no_time(tmp_path: pathlib.Path, clock: Clock):
    world = World(tmp_path, clock)
    state = world.run()
    before = (tmp_path / TIMES).read_bytes()
    world.run(world.saved[10][1], state)
    assert (tmp_path / TIMES).read_bytes() == before


@pytest.mark.parametrize(
    ('kind', 'seconds', 'message'),
    [
        (DATA, 3.0, 'step 21 took 3.0 s, 61 times the median: 3.0 s waiting for data, while a checkpoint was'),
        (SAVE, 1.02, 'step 21 took 1.1 s, 21 times the median: 1.0 s saving'),
        (STEP, 0.62, 'step 21 took 0.7 s, 13 times the median: 0.7 s in the step itself'),
        (EVALUATION, 9.0, None),  # evaluations have their own line
        (COMPILE, 9.0, None),
        (DATA, 0.3, None),  # too short for a printed line, but not for a row
    ],
)
def test_a_slow_step_is_reported_with_its_cause(
    tmp_path: pathlib.Path, clock: Clock, kind: str, seconds: float, message: str | None
):
    run_clock = GoodputClock(tmp_path, 0)
    run_clock.begin()
    for step in range(1, 23):
        if step == 21:
            with run_clock.during(kind):
                clock.now += seconds
        clock.now += 0.05 if step < 22 else 0.2
        line = run_clock.step(step, 'shape', saving=step == 21)
        assert line is None if step != 21 or message is None else line.startswith(message)
    (row,) = [row for row in lines(tmp_path) if 'slow' in row]
    assert row['step'] == 21 and row['median'] == 0.05 and row['beside'] == 'checkpoint'
    assert row['seconds'][kind] == pytest.approx(seconds + (0.05 if kind == STEP else 0))
    assert run_clock.step(23, 'another shape') is None


def test_the_console_reports_a_slow_step(tmp_path: pathlib.Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """The batch of step 9 takes 60 s in the loop, all other steps one second."""
    messages, world = [], World(tmp_path, clock, eval_every=0, checkpoint_every=0)
    monkeypatch.setattr(goodput_clock, '_MIN_STEPS', 3)
    monkeypatch.setattr('bertjax.writers.console.TrainingConsole.log', lambda self, text: messages.append(text))
    make_phase = world.phase

    def slow_phase(*arguments):
        phase = make_phase(*arguments)
        load = phase.load

        def slow_load(first):
            batches = load(first)
            next_batch = type(batches).__next__

            class SlowBatches(type(batches)):
                def __next__(self):
                    clock.now += 60 * (self.first == 8 and arguments[0] == 1)
                    return next_batch(self)

            batches.__class__ = SlowBatches
            return batches

        phase.load = slow_load
        return phase

    monkeypatch.setattr(world, 'phase', slow_phase)
    world.run()
    assert [text for text in messages if 'median' in text] == [
        'step 9 took 61.0 s, 61 times the median: 60.0 s waiting for data'
    ]


class FakeClock:
    """A goodput clock whose activity and number of moves a test sets."""

    doing, moves = STEP, 0


@pytest.mark.parametrize('doing', [STEP, EVALUATION, START])
def test_a_hang_ends_the_process_with_its_stacks(tmp_path: pathlib.Path, capfd, doing: str):
    """The limit is short for steps, longer for slow activities, and does not exist before the first step."""
    run_clock, ended, limit = FakeClock(), threading.Event(), 0.1
    statuses = []
    run_clock.doing = doing

    def end_process(status: int) -> None:
        statuses.append(status)
        ended.set()

    with watch_for_hangs(run_clock, limit / 60, tmp_path, end_process):
        for _ in range(4):  # progress keeps the process alive
            time.sleep(limit / 2)
            run_clock.moves += 1
        assert not ended.is_set()
        hung = ended.wait({STEP: 30, EVALUATION: 3 * limit, START: 3 * limit}[doing])
    assert hung == (doing == STEP) and LONG_FACTOR > 3
    if not hung:
        assert not (tmp_path / HANG).exists()
        return
    text, err = (tmp_path / HANG).read_text(), capfd.readouterr().err
    assert statuses == [4] and text.startswith('stopped: no progress for 0.00')
    assert 'in the step itself' in text and err.strip().splitlines()[-1] == text.splitlines()[0]
    for stacks in (text, err):
        assert 'test_a_hang_ends_the_process_with_its_stacks' in stacks and 'Thread 0x' in stacks


def test_a_hang_is_reported_even_if_the_disk_hangs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd):
    ended = threading.Event()
    monkeypatch.setattr(watchdog, '_WRITE_TIMEOUT', 0.05)
    monkeypatch.setattr(watchdog, 'write_atomic', lambda path, text: time.sleep(60))
    with watch_for_hangs(FakeClock(), 0.05 / 60, tmp_path, lambda status: ended.set()):
        assert ended.wait(30)
    assert 'config.hang_minutes' in capfd.readouterr().err


def test_zero_minutes_disable_the_watchdog(tmp_path: pathlib.Path):
    with watch_for_hangs(FakeClock(), 0, tmp_path):
        assert not [thread for thread in threading.enumerate() if thread.name == 'watchdog']


def test_the_requested_steps_are_traced(tmp_path: pathlib.Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys):
    """The trace covers exactly these steps; running again makes no second trace."""
    world, traced = World(tmp_path, clock, eval_every=0, checkpoint_every=0), []
    world.profiled = profiled_steps('4:7', 10)

    def start(folder: pathlib.Path, profiler_options: jax.profiler.ProfileOptions) -> None:
        assert profiler_options.python_tracer_level == 0
        folder.mkdir()
        traced.append((folder.name, world.done))

    monkeypatch.setattr(profiler.jax.profiler, 'start_trace', start)
    monkeypatch.setattr(profiler.jax.profiler, 'stop_trace', lambda: traced.append(world.done))
    world.run()
    assert traced == [('profile', 3), 6]
    world.run()
    assert len(traced) == 2


def test_an_early_end_is_the_last_traced_step(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiler.jax.profiler, 'start_trace', lambda folder, **options: None)
    monkeypatch.setattr(profiler.jax.profiler, 'stop_trace', lambda: None)
    lines: list[str] = []
    stopped = profiler.Profiler(tmp_path, range(4, 9), lines.append)
    for step in range(3, 7):
        stopped.during(step, lambda: None)
    stopped.close()
    assert lines == [f'traced steps 4 to 6: xprof --logdir={tmp_path / "profile"}']


@pytest.mark.parametrize('profile', ['0:3', '5:5', '7:3'])
def test_an_empty_range_of_steps_is_an_error(profile: str):
    with pytest.raises(UserError, match=re.escape(f"config.profile: found '{profile}', expected FIRST:END")):
        profiled_steps(profile, 10)
