"""The rows of runs that train together, and failed runs."""

import io
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_fakes import fake_experiment

from bertjax.checkpoint.position import Position
from bertjax.data.loader import NumberedBatch
from bertjax.metrics.rows import task_values
from bertjax.training.health.goodput_clock import GoodputClock
from bertjax.training.record import Recorder
from bertjax.writers.console import TrainingConsole


def recorder_of(folder: pathlib.Path, console: TrainingConsole, **options: object) -> Recorder:
    folders = [folder / name for name in 'ab']
    experiment = fake_experiment(folders, task_values, steps=8, log_every=2)
    return Recorder(experiment, console, GoodputClock(folders[0], 0), stacked=True, **options)


@pytest.fixture
def console() -> TrainingConsole:
    console = TrainingConsole(8, 0)
    console.console.file = io.StringIO()
    return console


def record_step(recorder: Recorder, step: int, skipped_in_row: tuple[int, int]) -> None:
    """Records a step of two runs with losses 1 and 3 on 4 rows."""
    counts = np.array(skipped_in_row, np.int32)
    scalars = {
        'grad_norm': np.float32([1, 2]),
        'skipped': counts,
        'skipped_in_row': counts,
        'tokens': np.int32([8, 16]),
    }
    metrics = {'sums': {'loss': (np.float32([4, 12]), np.float32([4, 4]))}, 'scalars': scalars}
    batch = NumberedBatch(4 * step - 4, 4, np.uint32(4 * step - 4), {})
    recorder.step(Position(step, 0, 4 * step), batch, jax.tree.map(jnp.asarray, metrics))


def rows(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_run_has_its_rows_and_the_console_their_mean(tmp_path: pathlib.Path, console: TrainingConsole):
    recorder = recorder_of(tmp_path, console)
    recorder.begin_phase(0.0)
    for step in (1, 2):
        record_step(recorder, step, (0, 0))
    recorder.write_pending()
    recorder.close()
    (a,), (b,) = (rows(tmp_path / name / 'metrics.jsonl') for name in 'ab')
    assert (a['loss'], b['loss']) == (1, 3) and (a['grad_norm'], b['grad_norm']) == (1, 2)
    assert b['tokens_per_s'] == pytest.approx(2 * a['tokens_per_s']) and a['examples'] == 8
    assert rows(tmp_path / 'a' / 'ledger.jsonl') == rows(tmp_path / 'b' / 'ledger.jsonl')
    (line,) = console.console.file.getvalue().splitlines()
    assert line.startswith('step 2/8  loss 2.000')


def test_a_failed_run_does_not_affect_the_others(tmp_path: pathlib.Path, console: TrainingConsole):
    recorder = recorder_of(tmp_path, console)
    recorder.begin_phase(0.0)
    suspect = []
    for step, bad in enumerate((0, 1, 2, 3, 4, 0), 1):
        record_step(recorder, step, (0, bad))
        recorder.drain()
        suspect.append(recorder.suspect)
    assert recorder.failed == [False, True]
    assert suspect == [False, True, True, False, False, False]  # checkpoints are saved again after the run has failed
    recorder.close()
    assert [row['loss'] for row in rows(tmp_path / 'a' / 'metrics.jsonl')] == [1, 1, 1]
    assert [row['loss'] for row in rows(tmp_path / 'b' / 'metrics.jsonl')] == [3, None, 3]
    out = console.console.file.getvalue()
    assert out.count('the update is skipped') == 2 and out.count('run 2, step 4: loss, gradient or update not')


def test_a_failed_run_stays_failed_after_a_restart(tmp_path: pathlib.Path, console: TrainingConsole):
    assert recorder_of(tmp_path, console, failed=[False, True]).failed == [False, True]
