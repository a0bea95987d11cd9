"""Any checkpoint can be evaluated, predicted with and exported, of a run that is finished or not."""

import itertools
import json
import pathlib
import shutil
from unittest import mock

import pytest
from running import GLUE, Program, results, rows
from test_tasks import SHORT, write_squad

from bertjax.train.health.interrupt import Interrupt


def stop_after(steps: int):
    """In place of a signal: the loop asks once before the first step, then after each."""
    asked = itertools.count()
    return mock.patch.object(Interrupt, 'requested', lambda self: next(asked) >= steps)


def card(workdir: pathlib.Path) -> str:
    return (workdir / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')


@pytest.fixture(scope='module')
def stopped(program: Program, tune, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A fine-tuning that was asked to stop after step 30 of 72; it has the checkpoints 12, 24 and 30."""
    workdir = tmp_path_factory.mktemp('stopped')
    with stop_after(30):
        program.run(f'--workdir={workdir}', *tune, '--config.checkpoint_keep=9', status=75, **GLUE)
    return workdir


@pytest.mark.slow
def test_a_run_that_was_stopped_is_evaluated(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own')
    program.run(f'--workdir={own}', '--config.run=evaluate', **GLUE)
    assert results(own)['step'] == 30 and results(own)['splits']['dev'].keys() == {'accuracy'}
    program.run(f'--workdir={own}', '--config.run=evaluate', '--config.step=24', **GLUE)
    (then,) = (row['accuracy'] for row in rows(own / 'metrics.jsonl', 'dev') if row['step'] == 24)
    assert results(own)['step'] == 24 and results(own)['splits'] == {'dev': {'accuracy': then}}
    program.run(f'--workdir={own}', '--config.run=evaluate', '--config.use_checkpoint=best', **GLUE)
    assert results(own)['step'] == 24  # the only one that was measured
    for step in ('13', '-1'):
        line = program.error(f'--workdir={own}', '--config.run=evaluate', f'--config.step={step}', **GLUE)
        assert 'config.step' in line and (step == '-1' or 'one of 12, 24, 30' in line)


@pytest.mark.slow
def test_a_run_that_was_stopped_predicts_and_exports(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own')
    for step in (12, 0):
        asked = f'--config.step={step}'
        program.run(f'--workdir={own}', '--config.run=predict', '--config.split=dev', asked, **GLUE)
        said = rows(own / 'predictions' / 'dev.jsonl')
        out = program.run(f'--workdir={own}', '--config.run=export', asked, **GLUE).stdout
        assert f'at step {step or 30} exported' in out and f'steps | {step or 30}' in card(own).replace(':', ' |')
        # The export answers alone, from another workdir.
        other = (f'--workdir={tmp_path / str(step)}', '--config.run=predict', '--config.split=dev')
        data = json.loads((own / 'config.json').read_text())['data']
        model = (f'--config.init={own / "export" / "hf"}', f'--config.data={data}', '--config.seq_len=24')
        program.run(*other, *model, **GLUE)
        assert rows(tmp_path / str(step) / 'predictions' / 'dev.jsonl') == said


@pytest.mark.slow
def test_an_earlier_version_that_saved_no_task_json(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own')
    (own / 'task.json').unlink()
    program.run(f'--workdir={own}', '--config.run=evaluate', **GLUE)
    assert results(own)['step'] == 30


@pytest.mark.slow
def test_it_continues_and_then_the_end_counts(program: Program, tune, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own')
    program.run(f'--workdir={own}', '--config.run=evaluate', **GLUE)
    out = program.run(f'--workdir={own}', *tune, '--config.checkpoint_keep=9', **GLUE).stdout
    assert 'continuing at step 30 of 72' in out and 'changed since' not in out
    whole = results(own)
    assert 'step' not in whole and 'finished' not in json.loads((own / 'task.json').read_text())
    program.run(f'--workdir={own}', '--config.run=evaluate', **GLUE)
    assert results(own) == whole
    program.run(f'--workdir={own}', '--config.run=export', '--config.step=12', **GLUE)
    assert 'accuracy' not in card(own)  # the figures are of another checkpoint


@pytest.mark.slow
def test_what_dev_decides_is_decided_by_evaluate(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The threshold of SQuAD 2.0, which a run that was stopped has not looked for."""
    write_squad(tmp_path, '2.0')
    own, recipe = tmp_path / 'own', {'recipe': 'configs/squad.py:v2', 'small': False}
    given = (f'--workdir={own}', f'--config.init={trained}', f'--config.data={tmp_path}', '--config.task.max_query=12')
    with stop_after(4):
        program.run(*given, *SHORT, status=75, **recipe)
    facts = json.loads((own / 'task.json').read_text())
    assert facts['finished'] is False and facts['learned'] == {'null_threshold': 0.0}
    program.run(f'--workdir={own}', '--config.run=evaluate', **recipe)
    dev = results(own)['splits']['dev']
    assert dev['f1'] == dev['best_f1'] and dev['null_threshold'] != 0.0


@pytest.mark.slow
def test_nothing_is_saved_yet(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own', ignore=shutil.ignore_patterns('checkpoints'))
    assert 'start the training again' in program.error(f'--workdir={own}', '--config.run=evaluate', **GLUE)


@pytest.mark.slow
def test_a_kill_in_the_first_save_leaves_no_model(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(stopped, tmp_path / 'own', ignore=shutil.ignore_patterns('checkpoints'))
    (own / 'checkpoints' / '5.orbax-checkpoint-tmp').mkdir(parents=True)
    (own / 'checkpoints' / '5.unfinished').touch()
    evaluate, export = (f'--workdir={own}', '--config.run=evaluate'), (f'--workdir={own}', '--config.run=export')
    assert 'start the training again' in program.error(*evaluate, **GLUE)
    assert 'no checkpoints in' in program.error(*export, **GLUE)
    (own / 'checkpoints' / '4').mkdir()  # may be one, without its seal
    assert '1 folder(s) that may be checkpoints' in program.error(*evaluate, **GLUE)


def test_a_checkpoint_of_a_pre_training_is_exported(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    own = shutil.copytree(trained, tmp_path / 'own')
    assert 'step 20 exported' in program.run(f'--workdir={own}', '--config.run=export', '--config.step=20').stdout
    assert (own / 'export/hf/model.safetensors').read_bytes() != (trained / 'export/hf/model.safetensors').read_bytes()
    assert 'one of 20, 24' in program.error(f'--workdir={own}', '--config.run=export', '--config.step=3')


def test_a_recipe_with_another_head_for_pairs(program: Program, trained: pathlib.Path):
    without = ('--config.run=export', '--config.pairs.mode=full_sentences')
    assert 'config.pairs.mode: found full_sentences, expected nsp' in program.error(f'--workdir={trained}', *without)


def test_a_recipe_that_needs_its_argument(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """What it names must be the run's task; what else it decides nothing can tell."""
    own = tmp_path / 'own.py'
    lines = ('from bertjax.config.files import load_recipe', '', '', 'def get_config(task):')
    own.write_text('\n'.join([*lines, "    return load_recipe(f'configs/glue.py:{task}')", '']))
    verb = (f'--workdir={tuned}', '--config.run=evaluate', '--config.step=5')
    assert 'config.step: found 5' in program.error(*verb, recipe=f'{own}:rte', small=False)
    assert 'config.task.task: found' in program.error(*verb, recipe=f'{own}:cola', small=False)
