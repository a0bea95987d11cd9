"""Evaluation, prediction and export work with any checkpoint of a finished or unfinished run."""

import itertools
import json
import pathlib
import shutil
from unittest import mock

import pytest
from running import GLUE, ONE_LENGTH, RUN, Program, results, rows
from test_tasks import SHORT, write_squad

import bertjax
from bertjax.commands.evaluate import _merge_facts
from bertjax.training.health.interrupt import Interrupt
from bertjax.workdir import resolve_path
from bertjax.workdir.resolve_path import huggingface_directory

# The arguments of `stopped` after those of `tune`: 48 steps.
EVERY_12 = (ONE_LENGTH, '--config.epochs=8', '--config.checkpoint_every=12', '--config.checkpoint_keep=9')


def stop_after(steps: int):
    """Stops training after some steps, as a signal does: the loop checks before the first step and after each step."""
    checks = itertools.count()
    return mock.patch.object(Interrupt, 'requested', lambda self: next(checks) >= steps)


def card(workdir: pathlib.Path) -> str:
    return (workdir / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')


@pytest.fixture(scope='module')
def stopped(program: Program, tune, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of a fine-tuning that was stopped after step 30 of 48, with the checkpoints 12, 24 and 30."""
    workdir = tmp_path_factory.mktemp('stopped')
    with stop_after(30):
        program.run(f'--workdir={workdir}', *tune, *EVERY_12, status=75, **GLUE)
    return workdir


@pytest.mark.slow
def test_a_stopped_run_can_be_evaluated(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(stopped, tmp_path / 'own')
    program.run(f'--workdir={workdir}', '--config.run=evaluate', **GLUE)
    assert results(workdir)['step'] == 30 and results(workdir)['splits']['dev'].keys() == {'accuracy'}
    program.run(f'--workdir={workdir}', '--config.run=evaluate', '--config.step=24', **GLUE)
    (accuracy,) = (row['accuracy'] for row in rows(workdir / 'metrics.jsonl', 'dev') if row['step'] == 24)
    assert results(workdir)['step'] == 24 and results(workdir)['splits'] == {'dev': {'accuracy': accuracy}}
    (workdir / 'task.json').unlink()  # the labels then come from the training data
    program.run(f'--workdir={workdir}', '--config.run=evaluate', '--config.use_checkpoint=best', **GLUE)
    assert results(workdir)['step'] == 24  # the only checkpoint that was evaluated
    for step in ('13', '-1'):
        line = program.error(f'--workdir={workdir}', '--config.run=evaluate', f'--config.step={step}', **GLUE)
        assert 'config.step' in line and (step == '-1' or 'saved steps (12, 24, 30)' in line)


@pytest.mark.slow
def test_a_stopped_run_can_predict_and_export(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(stopped, tmp_path / 'own')
    for step in (12, 0):
        step_flag = f'--config.step={step}'
        program.run(f'--workdir={workdir}', '--config.run=predict', '--config.split=dev', step_flag, **GLUE)
        predictions = rows(workdir / 'predictions' / 'dev.jsonl')
        # An export reads no data: config.data is a folder without the training table.
        export = (f'--workdir={workdir}', '--config.run=export', f'--config.data={tmp_path}')
        out = program.run(*export, step_flag, **GLUE).stdout
        assert f'at step {step or 30} exported' in out and f'steps | {step or 30}' in card(workdir).replace(':', ' |')
        # The export gives the same predictions from another workdir.
        other = (f'--workdir={tmp_path / str(step)}', '--config.run=predict', '--config.split=dev')
        data = json.loads((workdir / 'config.json').read_text())['data']
        model = (f'--config.init={workdir / "export" / "hf"}', f'--config.data={data}', '--config.seq_len=24')
        program.run(*other, *model, ONE_LENGTH, **GLUE)
        assert rows(tmp_path / str(step) / 'predictions' / 'dev.jsonl') == predictions


@pytest.mark.slow
def test_a_stopped_run_resumes_and_its_final_results_count(
    program: Program, tune, stopped: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = shutil.copytree(stopped, tmp_path / 'own')
    program.run(f'--workdir={workdir}', '--config.run=evaluate', **GLUE)
    out = program.run(f'--workdir={workdir}', *tune, *EVERY_12, **GLUE).stdout
    assert 'continuing at step 30 of 48' in out and 'changed since' not in out
    final = results(workdir)
    assert 'step' not in final and 'finished' not in json.loads((workdir / 'task.json').read_text())
    program.run(f'--workdir={workdir}', '--config.run=evaluate', **GLUE)
    assert results(workdir) == final
    out = program.run(f'--workdir={workdir}', '--config.run=evaluate', '--config.step=12', **GLUE).stdout
    restored = '--config.run=evaluate --config.split=dev'
    note = f'but those of step 12; {restored} computes the metrics of the final model again'
    assert f'no longer has the results of the final model, {note}' in out and results(workdir)['steps'] == 48
    out = program.run(f'--workdir={workdir}', *restored.split(), **GLUE).stdout
    assert 'no longer' not in out and 'step' not in results(workdir)
    assert results(workdir)['splits'] == final['splits']
    parts = {'train': '60 of 80 records', 'dev': '5 of 9 records'}
    (workdir / 'results.json').write_text(json.dumps(final | {'parts': parts}))
    program.run(f'--workdir={workdir}', '--config.run=export', '--config.step=12', **GLUE)
    assert 'accuracy' not in card(workdir)  # the metrics are those of another checkpoint
    assert '60 of 80 records' in card(workdir) and '5 of 9' not in card(workdir)


def test_the_length_of_a_run_is_kept_until_the_run_is_extended():
    length = {'steps': 48, 'stopped_at': 20}
    final, other = {'init': 'a', **length, 'splits': {}}, {'init': 'a', 'step': 12}
    assert _merge_facts(final, other, 48) == {**length, **other} and _merge_facts(final, other, 96) == other
    assert _merge_facts(final, {'init': 'a'}, 48) == final and _merge_facts(final, {'init': 'a'}, 96) == {'init': 'a'}


@pytest.mark.slow
def test_evaluate_chooses_the_threshold_on_dev(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """A stopped run has not yet chosen the threshold of SQuAD 2.0."""
    write_squad(tmp_path, '2.0')
    workdir, recipe = tmp_path / 'own', {'recipe': 'configs/squad.py:v2', 'small': False}
    flags = (
        f'--workdir={workdir}',
        f'--config.init={trained}',
        f'--config.data={tmp_path}',
        '--config.task.max_query=12',
        '--config.checkpoint_keep=2',
    )
    with stop_after(4):
        program.run(*flags, *SHORT, status=75, **recipe)
    facts = json.loads((workdir / 'task.json').read_text())
    assert facts['finished'] is False and facts['learned'] == {'null_threshold': 0.0}
    stopped = shutil.copytree(workdir, tmp_path / 'stopped')
    untuned = 'may not be tuned for this model'
    predict = ('--config.run=predict', '--config.split=dev')
    assert untuned in program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    # The threshold that was tuned last on other data is used until there is one for the run's own data.
    other = tmp_path / 'other'
    other.mkdir()
    shutil.copy(tmp_path / 'dev-v2.0.json', other)
    evaluate = (f'--workdir={workdir}', '--config.run=evaluate', f'--config.data={other}')
    program.run(*evaluate, **recipe)
    found = results(workdir)
    (section,) = found['other_data'].values()
    found['other_data']['/newer'] = {'splits': {'dev': {'null_threshold': 99.0}}}
    (workdir / 'results.json').write_text(json.dumps(found))
    assert bertjax.load(workdir).task.null_threshold == 99.0
    program.run(*evaluate, **recipe)
    out = program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    threshold = section['splits']['dev']['null_threshold']
    assert untuned not in out and bertjax.load(workdir).task.null_threshold == threshold
    assert untuned not in program.run(f'--workdir={workdir}', '--config.run=evaluate', **recipe).stdout
    dev = results(workdir)['splits']['dev']
    assert dev['f1'] == dev['best_f1'] and dev['null_threshold'] != 0.0
    # Later verbs use this threshold for this model, but not for another one.
    tuned = rows(workdir / 'predictions' / 'dev.jsonl')
    assert untuned not in program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    assert rows(workdir / 'predictions' / 'dev.jsonl') == tuned
    assert bertjax.load(workdir).task.null_threshold == dev['null_threshold']
    # An ensemble without a threshold of its own uses those of its members.
    twins = [shutil.copytree(workdir, tmp_path / name) for name in 'ab']
    ensemble = (f'--workdir={tmp_path / "twins"}', f'--config.ensemble={twins[0]},{twins[1]}')
    for threshold in (-99.0, 99.0):
        found = {**results(workdir), 'splits': {'dev': {'null_threshold': threshold}}}
        for twin in twins:
            (twin / 'results.json').write_text(json.dumps(found))
        assert program.run(*ensemble, *predict, **recipe).stdout.count(untuned) == 1
        answers = [row['answer'] for row in rows(tmp_path / 'twins' / 'predictions' / 'dev.jsonl')]
        assert {bool(answer) for answer in answers} == {threshold > 0}
    program.run(f'--workdir={workdir}', '--config.run=export', **recipe)
    facts = json.loads((workdir / 'export' / 'hf' / 'task.json').read_text())
    assert facts['finished'] is False and facts['learned'] == {'null_threshold': dev['null_threshold']}
    (workdir / 'export' / 'hf' / 'task.json').unlink()  # as in a folder of another program
    foreign = (f'--workdir={tmp_path / "new"}', f'--config.init={workdir / "export" / "hf"}', '--config.seq_len=32')
    program.run(*foreign, *flags[2:], '--config.run=evaluate', **recipe)
    assert results(tmp_path / 'new')['splits']['dev'] == dev
    program.run(*foreign, *flags[2:], *predict, **recipe)
    assert rows(tmp_path / 'new' / 'predictions' / 'dev.jsonl') == tuned
    program.run(*flags, *SHORT, **recipe)
    assert untuned not in program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    assert untuned in program.run(f'--workdir={workdir}', *predict, '--config.step=4', **recipe).stdout
    # A member is not finished, so the ensemble has a threshold of its own.
    ensemble = (f'--workdir={tmp_path / "both"}', f'--config.ensemble={workdir},{stopped}')
    assert program.run(*ensemble, *predict, **recipe).stdout.count(untuned) == 1
    assert untuned not in program.run(*ensemble, '--config.run=evaluate', **recipe).stdout
    tuned = rows(tmp_path / 'both' / 'predictions' / 'dev.jsonl')
    assert untuned not in program.run(*ensemble, *predict, **recipe).stdout
    assert rows(tmp_path / 'both' / 'predictions' / 'dev.jsonl') == tuned
    assert results(tmp_path / 'both')['member_steps'] == {str(stopped): 4}
    assert untuned in program.run(*ensemble, *predict, '--config.step=4', **recipe).stdout


@pytest.mark.slow
def test_evaluate_chooses_the_threshold_of_a_run_without_dev(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    write_squad(tmp_path, '2.0')
    dev = shutil.move(tmp_path / 'dev-v2.0.json', tmp_path / 'late.json')
    workdir, recipe = tmp_path / 'own', {'recipe': 'configs/squad.py:v2', 'small': False}
    flags = (f'--config.init={trained}', f'--config.data={tmp_path}', '--config.task.max_query=12')
    program.run(f'--workdir={workdir}', *flags, *SHORT, **recipe)
    files = [workdir / 'task.json', workdir / 'export' / 'hf' / 'task.json']
    for facts in [json.loads(file.read_text()) for file in files]:
        assert facts['tuned'] is False and 'finished' not in facts and facts['learned'] == {'null_threshold': 0.0}
    untuned, predict = 'may not be tuned for this model', ('--config.run=predict', f'--config.input={dev}')
    assert untuned in program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    program.run(f'--workdir={workdir}', '--config.run=evaluate', f'--config.task.dev_file={dev.name}', **recipe)
    (section,) = results(workdir)['other_data'].values()
    found = section['splits']['dev']
    assert found['f1'] == found['best_f1'] and found['null_threshold'] != 0.0
    assert untuned not in program.run(f'--workdir={workdir}', *predict, **recipe).stdout
    program.run(f'--workdir={workdir}', '--config.run=export', **recipe)
    facts = json.loads(files[1].read_text())
    assert 'tuned' not in facts and facts['learned'] == {'null_threshold': found['null_threshold']}


@pytest.mark.slow
def test_a_run_without_checkpoints_is_an_error(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(stopped, tmp_path / 'own', ignore=shutil.ignore_patterns('checkpoints'))
    assert 'start the training again' in program.error(f'--workdir={workdir}', '--config.run=evaluate', **GLUE)


@pytest.mark.slow
def test_a_kill_in_the_first_save_leaves_no_model(program: Program, stopped: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(stopped, tmp_path / 'own', ignore=shutil.ignore_patterns('checkpoints'))
    (workdir / 'checkpoints' / '5.orbax-checkpoint-tmp').mkdir(parents=True)
    (workdir / 'checkpoints' / '5.unfinished').touch()
    evaluate, export = (
        (f'--workdir={workdir}', '--config.run=evaluate'),
        (f'--workdir={workdir}', '--config.run=export'),
    )
    assert 'start the training again' in program.error(*evaluate, **GLUE)
    assert 'no checkpoints in' in program.error(*export, **GLUE)
    (workdir / 'checkpoints' / '4').mkdir()  # may be a checkpoint, but has no seal
    assert '1 folder(s) that may be checkpoints' in program.error(*evaluate, **GLUE)


def test_a_checkpoint_of_a_pre_training_is_exported(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = shutil.copytree(trained, tmp_path / 'own')
    assert 'step 20 exported' in program.run(f'--workdir={workdir}', '--config.run=export', '--config.step=20').stdout
    assert (workdir / 'export/hf/model.safetensors').read_bytes() != (
        trained / 'export/hf/model.safetensors'
    ).read_bytes()
    assert 'saved steps (20, 24)' in program.error(f'--workdir={workdir}', '--config.run=export', '--config.step=3')


@pytest.mark.slow
def test_an_export_that_is_older_than_a_checkpoint_is_named(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
):
    workdir = shutil.copytree(trained, tmp_path / 'own')
    with stop_after(4):
        program.run(f'--workdir={workdir}', *RUN, '--config.steps=32', status=75)
    note = f'the export of {workdir} is older than its checkpoint 28: run the command of its training with '
    note += '--config.run=export to update it\n'
    for expected in (note, ''):  # once
        huggingface_directory(str(workdir))
        assert capsys.readouterr().out == expected
    resolve_path._print_once.cache_clear()
    program.run(f'--workdir={workdir}', *RUN, '--config.steps=32', '--config.run=export')
    capsys.readouterr()
    huggingface_directory(str(workdir))
    assert capsys.readouterr().out == ''


def test_a_recipe_with_another_pair_head_is_refused(program: Program, trained: pathlib.Path):
    without = ('--config.run=export', '--config.pairs.mode=full_sentences')
    assert 'config.pairs.mode: found full_sentences, expected nsp' in program.error(f'--workdir={trained}', *without)


def test_a_recipe_may_need_its_argument(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The task in the argument must be the task of the run; its other effects cannot be checked."""
    path = tmp_path / 'own.py'
    lines = ('from bertjax.config.files import load_recipe', '', '', 'def get_config(task):')
    path.write_text('\n'.join([*lines, "    return load_recipe(f'configs/glue.py:{task}')", '']))
    verb = (f'--workdir={tuned}', '--config.run=evaluate', '--config.step=5')
    assert 'config.step: found 5' in program.error(*verb, recipe=f'{path}:rte', small=False)
    assert 'config.task.task: found' in program.error(*verb, recipe=f'{path}:cola', small=False)
