"""Runs whose mask rate changes during training."""

import pathlib
import re
import shutil

import numpy as np
import pytest
from golden_runs import rewind
from running import RUN, Program, copy_workdir, rows

from bertjax.data.scheduled_masks import ScheduledMasks

FALLING = (*RUN, '--config.steps=8', '--config.masking.rate=0.4', '--config.masking.final_rate=0.15')
FALLING += ('--config.max_predictions=13', '--config.packing=True')


@pytest.fixture(scope='module')
def falling(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('falling') / 'run'
    out = program.run(f'--workdir={folder}', *FALLING).stdout
    assert 'masked positions: 40% to 15% in training, 15% in evaluation' in out
    return folder


@pytest.mark.slow
def test_the_run_and_its_card_name_both_rates(falling: pathlib.Path):
    card = (falling / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')
    assert '40% to 15% of positions (15% in evaluation)' in card


@pytest.mark.slow
def test_a_resumed_run_with_a_falling_rate_ends_in_the_same_bits(
    program: Program, falling: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(falling, tmp_path / 'run')
    shutil.rmtree(workdir / 'checkpoints' / '8')
    assert 'continuing at step 4 of 8' in program.run(f'--workdir={workdir}', *FALLING).stdout
    for name in ('ledger.jsonl', 'config.json', 'export/hf/model.safetensors'):
        assert (workdir / name).read_bytes() == (falling / name).read_bytes(), name
    metrics = [rows(folder / 'metrics.jsonl', 'heldout') for folder in (workdir, falling)]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
@pytest.mark.parametrize('flags', [('--config.run=corpus',), ('--config.steps=2', '--config.export=False')])
def test_the_report_shows_the_masks_of_the_first_rate(program: Program, tmp_path: pathlib.Path, flags):
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    rising = (f'--workdir={tmp_path}', '--config.masking.rate=0.1', '--config.masking.final_rate=0.4')
    rising += ('--config.max_predictions=13', '--config.batch_size=64')
    program.run(*rising, *flags)
    program.run(*rising, '--config.run=report')
    counts = re.findall(r'(\d+) to predict', (tmp_path / 'report.html').read_text(encoding='utf-8'))
    assert len(counts) == 4 and max(map(int, counts)) <= 4  # at most about 10% of 30


@pytest.mark.slow
@pytest.mark.parametrize('batch_size', [8, 32, 4])
def test_the_final_rate_is_reached_with_another_batch_size(
    program: Program, falling: pathlib.Path, tmp_path: pathlib.Path, monkeypatch, batch_size: int
):
    rewind(copy_workdir(falling, tmp_path), step=4)
    rates, schedule = {}, ScheduledMasks.rates

    def recorded_rates(examples: ScheduledMasks, indices: np.ndarray) -> np.ndarray:
        rates.update(zip(indices.tolist(), schedule(examples, indices), strict=True))
        return schedule(examples, indices)

    monkeypatch.setattr(ScheduledMasks, 'rates', recorded_rates)
    program.run(f'--workdir={tmp_path}', *FALLING, f'--config.batch_size={batch_size}')
    ledger = rows(tmp_path / 'ledger.jsonl')
    assert rates[ledger[4]['first']] == pytest.approx(0.275, abs=0.005)  # half of the steps are done
    assert rates[ledger[-1]['first'] + batch_size - 1] == pytest.approx(0.15)
    assert rates[ledger[-1]['first'] - 1] > 0.18


def test_a_rate_beyond_the_predictions_is_refused(program: Program, tmp_path: pathlib.Path):
    line = program.error(f'--workdir={tmp_path}', *FALLING, '--config.max_predictions=11')
    assert line.startswith('error: config.max_predictions: found 11, expected at least 12 with this mask rate: 40% of ')


@pytest.mark.slow
def test_a_constant_rate_beyond_the_predictions_is_warned_of(program: Program, tmp_path: pathlib.Path):
    flags = ('--config.steps=1', '--config.masking.rate=0.4', '--config.export=False')
    out = program.run(f'--workdir={tmp_path}', *flags).stdout
    assert 'warning: config.max_predictions=5 limits the masks of full rows to 16% of 32 positions, not 40%: ' in out
