"""config.patience: a run that does not improve on dev ends early, as if it had fewer steps."""

import pathlib
import shutil

import pytest
from running import GLUE, ONE_LENGTH, Program, results, rows
from test_checkpoint_choice import stop_after

# With this learning rate no evaluation is better than the first at step 2; three more end at step 8.
FLAT = ('--config.learning_rate=1e-12', '--config.steps=40', '--config.eval_every=2', '--config.checkpoint_every=3')
FLAT += ('--config.patience=3', '--config.log_every=1', ONE_LENGTH)


def steps(workdir: pathlib.Path) -> list[int]:
    return [row['step'] for row in rows(workdir / 'ledger.jsonl')]


@pytest.mark.slow
def test_a_run_ends_early_and_is_finished(program: Program, tune, tmp_path: pathlib.Path):
    first = tmp_path / 'once'
    out = program.run(f'--workdir={first}', *tune, *FLAT, **GLUE).stdout
    assert 'step 8 is the last: 3 evaluations in a row were no better on dev' in out
    assert steps(first) == list(range(1, 9)) and [row['step'] for row in rows(first / 'metrics.jsonl', 'dev')][-1] == 8
    expected = results(first)
    assert expected['stopped_at'] == 8 and expected['steps'] == 40 and 'step' not in expected
    assert 'stopped at step' in (first / 'export/hf/README.md').read_text()

    # An interrupted run has the same end.
    again = shutil.copytree(first, tmp_path / 'again')
    program.run(f'--workdir={again}', *tune, *FLAT, **GLUE)
    assert steps(again) == steps(first) and results(again) == expected
    assert 'config.learning_rate' in program.error(
        f'--workdir={again}', *tune, *FLAT, '--config.learning_rate=1e-3', **GLUE
    )
    broken = tmp_path / 'broken'
    with stop_after(5):
        program.run(f'--workdir={broken}', *tune, *FLAT, status=75, **GLUE)
    program.run(f'--workdir={broken}', *tune, *FLAT, **GLUE)
    assert steps(broken) == steps(first) and results(broken) == expected
    for name in ('export/hf/model.safetensors', 'predictions/dev.jsonl', 'config.json'):
        assert (broken / name).read_bytes() == (first / name).read_bytes(), name

    out = program.run(f'--workdir={again}', *tune, *FLAT, '--config.patience=5', **GLUE).stdout
    assert 'patience: 3 -> 5' in out and steps(again)[-1] == 12
    assert results(again)['stopped_at'] == 12
    program.run(f'--workdir={again}', '--config.run=evaluate', '--config.step=9', **GLUE)
    program.run(f'--workdir={again}', '--config.run=export', **GLUE)
    card = (again / 'export/hf/README.md').read_text()
    assert 'accuracy' not in card and 'stopped at step' in card


def test_patience_needs_evaluations_of_a_single_run(program: Program, tune, tmp_path: pathlib.Path):
    wrong = {
        'evaluations during training': ('--config.eval_every=0',),
        'use config.patience only for single runs': ('--config.sweep.seeds=(0,1)',),
        'a whole number from 0': ('--config.patience=-1',),
    }
    for part, changes in wrong.items():
        line = program.error(f'--workdir={tmp_path}', *tune, '--config.patience=2', *changes, **GLUE)
        assert 'config.patience' in line and part in line


@pytest.mark.parametrize('key', ['patience=1', 'use_checkpoint=best', 'sweep.seeds=(0,1)'])
def test_a_choice_needs_different_scores_on_dev(program: Program, trained, tmp_path: pathlib.Path, key: str):
    (tmp_path / 'train.csv').write_text('text,label\na,1\nb,2\n')
    (tmp_path / 'dev.csv').write_text('text,label\na,3\nb,3\n')
    options = (f'--workdir={tmp_path}/run', f'--config.init={trained}', f'--config.data={tmp_path}')
    options += ('--config.seq_len=16', '--config.eval_every=1', f'--config.{key}')
    line = program.error(*options, recipe='configs/classify.py:regression', small=False)
    assert f'config.{key.partition("=")[0].removesuffix(".seeds")}: found a dev split with equal scores' in line
