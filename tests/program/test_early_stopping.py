"""config.patience: a run that gets no better on dev ends, as if it had been that long."""

import pathlib
import shutil

import pytest
from running import GLUE, Program, results, rows
from test_asked_step import stop_after

# So low a rate that no evaluation is better than the first, of step 2: the fourth is of step 8.
FLAT = ('--config.learning_rate=1e-12', '--config.steps=40', '--config.eval_every=2', '--config.checkpoint_every=3')
FLAT += ('--config.patience=3', '--config.log_every=1')


def steps(workdir: pathlib.Path) -> list[int]:
    return [row['step'] for row in rows(workdir / 'ledger.jsonl')]


@pytest.mark.slow
def test_it_ends_early_and_is_finished(program: Program, tune, tmp_path: pathlib.Path):
    once = tmp_path / 'once'
    out = program.run(f'--workdir={once}', *tune, *FLAT, **GLUE).stdout
    assert 'step 8 is the last: 3 evaluations in a row were no better on dev' in out
    assert steps(once) == list(range(1, 9)) and [row['step'] for row in rows(once / 'metrics.jsonl', 'dev')][-1] == 8
    found = results(once)
    assert found['stopped_at'] == 8 and found['steps'] == 40 and 'step' not in found
    assert 'stopped at step' in (once / 'export/hf/README.md').read_text()

    # Started again, it is finished; interrupted on the way, it ends the same.
    again = shutil.copytree(once, tmp_path / 'again')
    program.run(f'--workdir={again}', *tune, *FLAT, **GLUE)
    assert steps(again) == steps(once) and results(again) == found
    assert 'config.learning_rate' in program.error(
        f'--workdir={again}', *tune, *FLAT, '--config.learning_rate=1e-3', **GLUE
    )
    broken = tmp_path / 'broken'
    with stop_after(5):
        program.run(f'--workdir={broken}', *tune, *FLAT, status=75, **GLUE)
    program.run(f'--workdir={broken}', *tune, *FLAT, **GLUE)
    assert steps(broken) == steps(once) and results(broken) == found
    for name in ('export/hf/model.safetensors', 'predictions/dev.jsonl', 'config.json'):
        assert (broken / name).read_bytes() == (once / name).read_bytes(), name

    # More patience continues.
    out = program.run(f'--workdir={again}', *tune, *FLAT, '--config.patience=5', **GLUE).stdout
    assert 'patience: 3 -> 5' in out and steps(again)[-1] == 12
    assert results(again)['stopped_at'] == 12


def test_what_patience_needs(program: Program, tune, tmp_path: pathlib.Path):
    wrong = {
        'evaluations during training': ('--config.eval_every=0',),
        'use config.patience only for single runs': ('--config.sweep.seeds=(0,1)',),
        'a whole number from 0': ('--config.patience=-1',),
    }
    for said, changes in wrong.items():
        line = program.error(f'--workdir={tmp_path}', *tune, '--config.patience=2', *changes, **GLUE)
        assert 'config.patience' in line and said in line


def test_evaluations_that_round_to_none(program: Program, tune, tmp_path: pathlib.Path):
    """How many steps 0.5 % are, the records decide."""
    never = ('--config.patience=2', '--config.eval_every=0.5%')
    error = program.error(f'--workdir={tmp_path}', *tune, *never, **GLUE)
    assert 'config.patience: found 2 with config.eval_every=0.5%' in error
    assert not (tmp_path / 'metrics.jsonl').exists()
