"""config.sweep: trials, resuming, and trials that train together."""

import itertools
import json
import pathlib
import shutil
import statistics
from unittest import mock

import pytest
from running import GLUE, RUN, SWEEP, Program, copy_workdir, rows

from bertjax.errors import PreemptedError
from bertjax.finetune.sweep import TrialGroup
from bertjax.finetune.trials import Trial
from bertjax.training.health.interrupt import Interrupt


def trials(workdir: pathlib.Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in workdir.glob('trials/*/results.json')}


def test_the_table_is_of_the_trials(swept: pathlib.Path):
    results = trials(swept)
    summary = json.loads((swept / 'sweep.json').read_text())
    assert sorted(results) == sorted(summary['trials']) and len(results) == 4
    assert [line['learning_rate'] for line in summary['settings']] == [1e-5, 3e-3]
    for line in summary['settings']:
        mine = [c for c in results.values() if c['learning_rate'] == line['learning_rate']]
        scores = [trial['splits']['dev']['accuracy'] for trial in mine]
        assert line['runs'] == 2 and line['collapsed'] == sum(trial['collapsed'] for trial in mine)
        assert (line['median'], line['mean']) == (statistics.median(scores), statistics.fmean(scores))
        assert line['sd'] == statistics.stdev(scores) and line['best'] == max(scores)
    best = results[summary['best']]['splits']['dev']['accuracy']
    assert best == max(trial['splits']['dev']['accuracy'] for trial in results.values()) > 0.9
    assert (swept / 'export/hf/model.safetensors').exists()
    assert summary['best'] in (swept / 'stdout.txt').read_text()


def test_a_trial_agrees_with_a_single_run(swept: pathlib.Path, tuned: pathlib.Path):
    """Data, dropout and initial parameters are the same, so the losses differ only by rounding."""
    (trial,) = [path for path in swept.glob('trials/*lr=0.003,seed=0')]
    expected, measured = (rows(folder / 'metrics.jsonl', 'train') for folder in (tuned, trial))
    assert [row['step'] for row in measured] == [row['step'] for row in expected]
    assert [row['loss'] for row in measured] == pytest.approx([row['loss'] for row in expected], rel=1e-2)
    metrics = json.loads((tuned / 'results.json').read_text())['splits']['dev']
    assert trials(swept)[trial.name]['splits']['dev'] == metrics


def test_finished_trials_are_not_run_again(program: Program, tune, trained, rte, swept, tmp_path: pathlib.Path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob('trials/*/results.json')}
    again = (*tune, *SWEEP, '--config.log_every=7', '--config.hang_minutes=20')  # keys that do not affect the trials
    again += (f'--config.data={copy_workdir(rte, tmp_path / "moved" / "data")}',)
    assert '4 runs, 4 of them already finished' in program.run(f'--workdir={tmp_path}', *again, **GLUE).stdout
    too_late = (f'--workdir={tmp_path}', *again, '--config.profile=80:82')  # the trials have 72 steps
    assert '4 runs, 4 of them already finished' in program.run(*too_late, **GLUE).stdout
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob('trials/*/results.json')}
    workdir = copy_workdir(swept, tmp_path / 'moved' / 'rte')  # with the rows of a Python program and an earlier task
    config = json.loads((workdir / 'config.json').read_text()) | {'data': '/old/rte/rows/1/rte', 'init': 'old/mnli'}
    (workdir / 'config.json').write_text(json.dumps(config))
    data = copy_workdir(rte, workdir / 'rows' / '1' / 'rte')
    init = copy_workdir(trained, tmp_path / 'moved' / 'mnli')
    again = (f'--workdir={workdir}', *tune, *SWEEP, f'--config.data={data}', f'--config.init={init}')
    assert '4 runs, 4 of them already finished' in program.run(*again, **GLUE).stdout
    line = program.error(f'--workdir={tmp_path}', *tune, *SWEEP, f'--config.init={init}', **GLUE)
    assert f'config.init: found {init}, expected {trained}' in line
    other = copy_workdir(trained, tmp_path / 'other' / 'mnli')  # another model of the same name
    (workdir / 'config.json').write_text(json.dumps(config | {'init': str(other)}))
    assert f'config.init: found {init}, expected {other}' in program.error(*again, **GLUE)
    line = program.error(f'--workdir={tmp_path}', *tune, *SWEEP, '--config.warmup_fraction=0.2', **GLUE)
    assert 'config.warmup_fraction' in line and 'another --workdir' in line
    for verb, fix in (('plot', 'use --config.run=report for the whole sweep'), ('export', 'use its export/')):
        line = program.error(f'--workdir={tmp_path}', f'--config.run={verb}', **GLUE)
        assert 'found ' in line and 'sweep' in line and fix in line and 'train first' not in line
    saved = json.loads((tmp_path / 'config.json').read_text())
    saved['fingerprints']['data'] = 'of other rows'
    (tmp_path / 'config.json').write_text(json.dumps(saved))
    line = program.error(f'--workdir={tmp_path}', *tune, *SWEEP, **GLUE)
    assert 'the data: found ' in line and 'expected of other rows' in line


@pytest.mark.slow
def test_a_removed_trial_is_run_again(program: Program, tune, swept: pathlib.Path, tmp_path: pathlib.Path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob('trials/*/results.json')}
    (removed,) = tmp_path.glob('trials/*lr=0.003,seed=1')
    shutil.rmtree(removed)
    result = program.run(f'--workdir={tmp_path}', *tune, *SWEEP, '--config.sweep.together=1', **GLUE)
    assert '4 runs, 3 of them already finished' in result.stdout
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob('trials/*/results.json')}
    assert all(after[path] == time for path, time in before.items() if path.parent != removed) and len(after) == 4
    assert trials(tmp_path).keys() == trials(swept).keys()


@pytest.mark.slow
def test_a_removed_export_is_made_again_with_its_trial(program: Program, tune, swept, tmp_path: pathlib.Path):
    """The trial may be as good as another one."""
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    best = json.loads((swept / 'sweep.json').read_text())['best']
    (other,) = [name for name in trials(swept) if 'lr=0.003' in name and name != best]
    shutil.copy(tmp_path / 'trials' / best / 'results.json', tmp_path / 'trials' / other / 'results.json')
    shutil.rmtree(tmp_path / 'trials' / best)
    shutil.rmtree(tmp_path / 'export')
    program.run(f'--workdir={tmp_path}', *tune, *SWEEP, '--config.sweep.together=1', **GLUE)
    assert (tmp_path / 'export' / 'trial.txt').read_text() == f'{best}\n'


def test_a_run_and_a_sweep_do_not_share_a_folder(program: Program, tune, swept, tuned, tmp_path: pathlib.Path):
    for folder, changes in ((swept, ()), (tuned, SWEEP)):
        workdir = tmp_path / folder.parent.name
        shutil.copytree(folder, workdir)
        assert 'expected another folder' in program.error(f'--workdir={workdir}', *tune, *changes, **GLUE)
    # A pre-training would replace the exported model of the best trial.
    workdir = tmp_path / swept.parent.name
    pretrain = (f'--workdir={workdir}', *RUN, f'--config.tokenizer={workdir / "tokenizer"}')
    assert 'which has a sweep, expected another folder for a pre-training' in program.error(*pretrain)


def test_no_trial_is_trained_if_one_is_too_short_for_the_profile(program: Program, tune, tmp_path: pathlib.Path):
    flags = ('--config.sweep.batch_size=(16,32)', '--config.profile=40:42')  # the trials have 72 and 36 steps
    error = program.error(f'--workdir={tmp_path}', *tune, *flags, **GLUE)
    assert "config.profile: found '40:42', expected steps up to 36, the last of the trial all,batch=32," in error
    assert not (tmp_path / 'trials').exists()


def test_different_trials_have_different_folders():
    names = {Trial('all', 32, epochs, rate, 0).name for epochs in (3.0, 3.0000001) for rate in (2e-5, 2.0000001e-5)}
    assert len(names) == 4 and 'all,batch=32,epochs=3,lr=2e-05,seed=0' in names
    assert Trial('all', 32, 0.0, 1.0, 0).name == 'all,batch=32,lr=1,seed=0'


def test_fewer_trials_keep_the_best_model_of_all(program: Program, tune, swept, tmp_path: pathlib.Path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    summary = json.loads((swept / 'sweep.json').read_text())
    low = ('--config.sweep.learning_rate=(1e-5,)', '--config.sweep.seeds=(0,1)', '--config.sweep.together=2')
    out = program.run(f'--workdir={tmp_path}', *tune, *low, **GLUE).stdout
    assert '2 runs, 2 of them already finished' in out
    assert f'the model of {summary["best"]}, the best of all runs in the workdir' in out


def test_the_best_model_can_be_evaluated(program: Program, swept: pathlib.Path, tmp_path: pathlib.Path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    program.run(f'--workdir={tmp_path}', '--config.run=evaluate', **GLUE)
    summary = json.loads((swept / 'sweep.json').read_text())
    results = json.loads((tmp_path / 'results.json').read_text())['splits']
    assert results == trials(swept)[summary['best']]['splits']
    shutil.rmtree(tmp_path / 'export')
    error = program.error(f'--workdir={tmp_path}', '--config.run=evaluate', **GLUE)
    assert f'remove {tmp_path / "trials" / summary["best"]}, and start the sweep again' in error


def test_the_same_trials_are_trained_together_after_a_restart(
    program: Program, tune, swept: pathlib.Path, tmp_path: pathlib.Path
):
    """Memory decides the size of a group; the groups are the same whether trials are finished or not."""
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    last = sorted(trials(tmp_path))[2:]
    for name in last:
        (tmp_path / 'trials' / name / 'results.json').unlink()
    groups: list[list[str]] = []

    def stop(group: TrialGroup, interrupt: Interrupt) -> None:
        groups.append([trial.name for trial in group.trials])
        raise PreemptedError('stopped')

    with (
        mock.patch('bertjax.finetune.sweep.find_group_size', lambda one, count: -(-count // 2)),
        mock.patch.object(TrialGroup, 'run', stop),
    ):
        program.run(f'--workdir={tmp_path}', *tune, *SWEEP, '--config.sweep.together=0', status=75, **GLUE)
    assert groups == [last]


@pytest.mark.slow
def test_an_interrupted_sweep_ends_in_the_same_bits(program: Program, tune, swept, tmp_path: pathlib.Path):
    """Two signals come in the second of two groups, whose trials are saved together: in training and in exporting."""
    (tmp_path / 'task.json').write_text('{}')  # left by a run that was killed before its first checkpoint
    checks = itertools.count(1)  # before each group, at its start, and after each of its 72 steps
    with mock.patch.object(Interrupt, 'requested', lambda self: next(checks) == 74 + 2 + 30):
        result = program.run(f'--workdir={tmp_path}', *tune, *SWEEP, status=75, **GLUE)
    assert 'stopped at step 30 as asked' in result.stderr and len(trials(tmp_path)) == 2
    two_devices = copy_workdir(tmp_path, tmp_path.with_name('two_devices'))  # They sum in another order.
    with mock.patch('bertjax.finetune.sweep.export_task', side_effect=PreemptedError('stopped')):
        for workdir, devices in ((tmp_path, 1), (two_devices, 2)):
            flags = (f'--workdir={workdir}', *tune, *SWEEP, f'--config.mesh.data={devices}')
            result = program.run(*flags, status=75, devices=devices, **GLUE)
            assert '4 runs, 2 of them already finished' in result.stdout
            assert 'continuing at step 30 of 72' in result.stdout
    result = program.run(f'--workdir={tmp_path}', *tune, *SWEEP, **GLUE)
    assert '4 runs, 2 of them already finished' in result.stdout and 'all 72 steps are done' in result.stdout
    assert trials(tmp_path) == trials(swept)
    for name in ('export/hf/model.safetensors', *(f'trials/{trial}/ledger.jsonl' for trial in trials(swept))):
        assert (tmp_path / name).read_bytes() == (swept / name).read_bytes(), name
    assert not (tmp_path / '.unfinished').exists() and not (tmp_path / 'task.json').exists()
