"""Tests the rows of metrics.jsonl, rates of an interval, and their display."""

import functools
import io
import json
import math
import re

import pytest
from rich.console import Console

from bertjax.metrics.rows import add_sums, finite_or_none, pretraining_values
from bertjax.training.health import goodput_clock, throughput
from bertjax.training.health.goodput_clock import DATA, EVALUATION, GoodputClock
from bertjax.writers.console import TrainingConsole, format_value
from bertjax.writers.tensorboard import TensorBoard

SUMS = {'mlm_loss': (30.0, 10.0), 'mlm_accuracy': (4.0, 10.0), 'nsp_loss': (1.0, 4.0), 'nsp_accuracy': (3.0, 4.0)}


def test_a_row_has_losses_accuracies_and_perplexity():
    assert pretraining_values(SUMS) == {
        'loss': 3.25, 'mlm_loss': 3.0, 'mlm_accuracy': 0.4, 'nsp_loss': 0.25, 'nsp_accuracy': 0.75,
        'perplexity': pytest.approx(math.exp(3.0)),
    }  # fmt: skip


def test_sums_and_weights_are_added_before_they_are_divided():
    other = {'mlm_loss': (1.0, 90.0), 'mlm_accuracy': (90.0, 90.0)}
    values = pretraining_values(add_sums([SUMS, other]))
    assert values['mlm_loss'] == pytest.approx(0.31)  # It is not (3 + 1/90) / 2.
    assert values['mlm_accuracy'] == pytest.approx(0.94)
    assert values['nsp_loss'] == 0.25


def test_without_a_pair_objective_the_loss_is_that_of_the_masked_tokens():
    values = pretraining_values({name: pair for name, pair in SUMS.items() if name.startswith('mlm')})
    assert values['nsp_loss'] is None
    assert values['nsp_accuracy'] is None
    assert values['loss'] == values['mlm_loss'] == 3.0
    assert values == pretraining_values({**SUMS, 'nsp_loss': (0.0, 0.0), 'nsp_accuracy': (0.0, 0.0)})


def test_zero_weights_give_null_everywhere():
    assert set(pretraining_values({}).values()) == {None}


def test_sentence_order_has_separate_names():
    values = pretraining_values(SUMS, pair='sop')
    assert (values['sop_loss'], values['sop_accuracy'], values['loss']) == (0.25, 0.75, 3.25)
    assert not any(name.startswith('nsp') for name in values)


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_a_row_never_contains_nan(bad):
    values = pretraining_values({**SUMS, 'mlm_loss': (bad, 10.0)})
    row = finite_or_none({'step': 3, 'split': 'train', 'skipped': 1, **values})
    json.dumps(row, allow_nan=False)
    assert row['mlm_loss'] is None
    assert row['loss'] is None
    assert row['nsp_loss'] == 0.25
    assert (row['step'], row['split'], row['skipped']) == (3, 'train', 1)


def test_the_perplexity_of_a_large_loss_does_not_overflow():
    assert pretraining_values({'mlm_loss': (1e6, 1.0)})['perplexity'] > 1e300


@pytest.mark.parametrize(
    ('kind', 'peak'),
    [
        ('TPU v5 lite', 197e12),  # JAX's name for v5e.
        ('TPU v5', 459e12),  # JAX's name for v5p.
        ('TPU v5p', 459e12),
        ('TPU v6 lite', 918e12),
        ('TPU v3', 61.5e12),  # A device is half a chip.
        ('TPU v4', 275e12),
        ('NVIDIA A100-SXM4-80GB', 312e12),
        ('NVIDIA H100 80GB HBM3', 989e12),
        ('NVIDIA H100 PCIe', 756e12),
        ('NVIDIA H100 NVL', 835e12),
        ('NVIDIA H200', 989e12),
        ('cpu', None),
        ('TPU v9', None),
    ],
)
def test_the_peak_flops_of_each_device_kind(kind, peak):
    assert throughput.peak_flops(kind) == peak


class Clock:
    now = 100.0

    def perf_counter(self):
        return self.now

    time = perf_counter


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(goodput_clock, 'time', clock)
    return clock


def test_the_rates_of_an_interval_exclude_evaluation(clock, tmp_path):
    run_clock = GoodputClock(tmp_path, 0)
    watch = throughput.Throughput(run_clock)
    clock.now += 7.0
    run_clock.begin()
    for _ in range(4):
        with run_clock.during(DATA):
            clock.now += 0.5
        clock.now += 1.5
        watch.count(rows=32)
    with run_clock.during(EVALUATION):
        clock.now += 5.0
    assert watch.lap(tokens=[1600.0, 80.0], sequences=[192.0, 128.0])[0] == {
        'sequences_per_s': 24.0, 'tokens_per_s': 200.0, 'seconds_per_step': 2.0, 'data_wait': 0.25, 'mfu': None,
    }  # fmt: skip
    with run_clock.during(DATA):
        clock.now += 1.0
    watch.count(rows=8)
    (second,) = watch.lap(tokens=[0.0], sequences=[8.0])
    assert second['sequences_per_s'] == 8.0  # The first interval is not counted again.
    assert second['data_wait'] == 1.0


def test_mfu_is_reported_if_the_peak_is_known(clock, monkeypatch, tmp_path):
    monkeypatch.setattr(throughput, 'peak_flops', lambda kind: 1e12)
    run_clock = GoodputClock(tmp_path, 0)
    watch = throughput.Throughput(run_clock)
    run_clock.begin()
    watch.begin(2e9)
    clock.now += 1.0
    watch.count(rows=1000)
    assert watch.lap(tokens=[0.0], sequences=[0.0])[0]['mfu'] == pytest.approx(2e12 / 8e12)  # There are 8 devices.


def test_the_memory_of_this_process_is_reported():
    memory = throughput.memory_metrics()
    assert 10e6 < memory['host_memory'] < 100e9
    assert memory['device_memory'] is None  # CPU devices do not report their memory.


def test_tensorboard_files_contain_the_numbers_of_rows(tmp_path):
    board = TensorBoard(tmp_path)
    assert not list(tmp_path.iterdir())
    board.write({'step': 7, 'split': 'heldout', 'phase': 0, 'mlm_loss': 2.5, 'nsp_loss': None})
    board.write({'step': 9, 'split': 'train', 'phase': 0, 'loss': 1.5})
    board.close()
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert b'heldout/mlm_loss' in data
    assert b'train/loss' in data
    assert b'nsp_loss' not in data
    assert b'phase' not in data


def test_the_progress_bar_shows_status_step_and_time(monkeypatch):
    screen = io.StringIO()
    terminal = functools.partial(Console, file=screen, force_terminal=True, width=100, _environ={})
    monkeypatch.setattr('bertjax.writers.console.Console', terminal)

    def last_line() -> str:
        console._progress.refresh()
        text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', screen.getvalue()).replace('\r', '\n')
        return re.sub('━|╸|╺', '', text.rstrip().splitlines()[-1])  # Remove the bar itself.

    with TrainingConsole(2, 0) as console:
        with console.show_status('compiling …'):
            line = last_line()
            assert line.startswith('step  0/2') and 'compiling …' in line and ' -:--:--' in line
        console.set_step(1)
        assert last_line().startswith('step  1/2') and 'compiling' not in last_line()
        console.write({'split': 'train', 'step': 1, 'loss': 1.5, 'sequences_per_s': 9.0, 'seconds_per_step': 0.5})
        console.set_step(2)
        assert last_line().startswith('step  2/2') and 'loss 1.500  9 seq/s' in last_line()
        assert ' 0:00:00' in last_line()


def test_without_a_terminal_rows_are_printed_as_lines():
    console = TrainingConsole(100, 0)
    console.console.file = out = io.StringIO()
    assert isinstance(console.console, Console)
    train = {'split': 'train', 'step': 40, 'loss': None, 'sequences_per_s': 1234.0, 'seconds_per_step': 0.5}
    console.write(train)
    console.write({'split': 'heldout', 'step': 40, **pretraining_values(SUMS)})
    console.write({**train, 'step': 100})
    first, second, last = out.getvalue().splitlines()
    assert first == 'step 40/100  loss -  1,234 seq/s  left 0:00:30'
    assert last == 'step 100/100  loss -  1,234 seq/s'
    assert second == 'heldout at step 40: mlm loss 3.000  accuracy 0.400  nsp loss 0.250  accuracy 0.750'
    assert format_value(math.nan) == '-'


@pytest.mark.parametrize(('step', 'left'), [(40, '0:01:00'), (80, '0:00:40'), (90, '0:00:05')])
def test_the_time_left_considers_slower_steps_of_later_phases(step, left):
    console = TrainingConsole(100, 0, step_costs=[(80, 1.0), (100, 4.0)])
    console.console.file = out = io.StringIO()
    console.write({'split': 'train', 'step': step, 'loss': 1.5, 'sequences_per_s': 9.0, 'seconds_per_step': 0.5})
    assert out.getvalue().strip().endswith(f'left {left}')
