"""run=doctor reports what it finds, writes nothing, and exits with status 2 if something would prevent the run."""

import dataclasses
import json
import pathlib
import shutil
import time

import pytest
from running import GLUE, RUN, Program, assert_one_line, copy_workdir

from bertjax.config.files import load_recipe
from bertjax.config.recipes import distillation, pretraining_config
from bertjax.doctor import plan
from bertjax.files.atomic import lock_directory
from bertjax.finetune.settings import finetuning_settings
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.warm_start import with_architecture, with_existing_vocabulary

DOCTOR = '--config.run=doctor'


def statuses(out: str) -> dict[str, str]:
    """Returns {check: status}, the worst status if a check has several lines."""
    checks: dict[str, str] = {}
    for line in out.splitlines():
        status, _, rest = line.strip().partition(' ')
        if status in ('ok', 'warn', 'FAIL'):
            check = rest[:16].strip().split('  ')[0]
            checks[check] = max(checks.get(check, ''), status, key=('', 'ok', 'warn', 'FAIL').index)
    return checks


@pytest.mark.slow
def test_a_planned_run_is_checked(program: Program, tmp_path: pathlib.Path):
    new = tmp_path / 'new'
    out = program.run(f'--workdir={new}', *RUN, DOCTOR).stdout
    checks = statuses(out)
    assert {'versions', 'devices', 'workdir', 'config', 'tokenizer', 'corpus', 'disk', 'memory', 'hours'} == set(checks)
    assert 'FAIL' not in checks.values() and 'from steps timed on this machine, 8 x 32 in 0.0' in out
    assert 'no check failed' in out and not new.exists()


def test_a_finished_run_is_checked(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The doctor measures nothing again and writes nothing."""
    before = {path: path.stat().st_mtime_ns for path in trained.rglob('*')}
    out = program.run(f'--workdir={trained}', *RUN, DOCTOR, status=None).stdout
    checks = statuses(out)
    assert 'finished, step 24 of 24' in out and 'hours' not in checks and 'corpus' not in checks
    assert {'run', 'numbers', 'MLM loss', 'input', 'goodput'} <= set(checks) and 'a model without context' in out
    assert {path: path.stat().st_mtime_ns for path in trained.rglob('*')} == before
    # A command that would be refused, and one that would train longer.
    wider = program.run(f'--workdir={trained}', *RUN, '--config.model.width=48', DOCTOR, status=2)
    assert 'config.model.width: found 48, expected 32 as in' in wider.stdout
    assert statuses(wider.stdout)['resume'] == 'FAIL' and 'found 1 failed check of ' in wider.stderr
    budget = program.run(f'--workdir={trained}', *RUN, DOCTOR, recipe='configs/budget.py:2e12', status=2).stdout
    assert "FAIL  resume       config.budget: found 2e12, expected '' as in" in budget
    longer = program.run(f'--workdir={trained}', *RUN, '--config.steps=30', DOCTOR, status=None).stdout
    assert 'changed keys: steps: 24 -> 30' in longer and {'config', 'corpus', 'hours'} <= set(statuses(longer))


def test_text_that_a_resumed_run_refuses_is_a_failure(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, 'on_this_machine', lambda *_: ())  # times no steps
    longer, before = (*RUN, '--config.steps=30'), {path: path.stat().st_mtime_ns for path in trained.rglob('*')}
    corpus = json.loads((trained / 'config.json').read_text())['corpus']
    copy, grown = tmp_path / pathlib.Path(corpus).name, tmp_path / 'grown.txt'
    copy.write_text(pathlib.Path(corpus).read_text())
    grown.write_text(f'{copy.read_text()}\nOne more sentence.\n')
    vocabulary = tmp_path / 'vocab.txt'
    vocabulary.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghijkl']))

    def resume(flag: str) -> str:
        out = program.run(f'--workdir={trained}', *longer, flag, DOCTOR, status=None).stdout
        return next(line for line in out.splitlines() if line.startswith(('  FAIL  resume', '  ok    resume')))

    assert resume(f'--config.corpus={copy}').startswith('  ok ')  # another date and folder
    for flag, found in (
        (f'--config.corpus={grown}', 'a token store of other text (grown.txt in place of '),
        ('--config.corpus_options.heldout=0.4', 'a token store of other settings'),
        (f'--config.tokenizer={vocabulary}', 'a tokenizer other than'),
        (f'--config.heldout_texts=grown={grown}', ''),
    ):
        line = resume(flag)
        assert (line.startswith('  FAIL') and found in line) if found else line.startswith('  ok '), line
    assert {path: path.stat().st_mtime_ns for path in trained.rglob('*')} == before
    # Another store in config.data, and a held-out text whose store has another text.
    data = copy_workdir(trained, tmp_path / 'removed')
    program.run(f'--workdir={tmp_path / "other"}', f'--config.tokenizer={trained / "tokenizer"}',
                '--config.corpus_options.heldout=0.4', '--config.run=corpus')  # fmt: skip
    shutil.copytree(data / 'store', data / 'heldout' / 'grown')
    for flag, found in (
        (f'--config.data={tmp_path / "other" / "store"}', 'the store: found'),
        (f'--config.heldout_texts=grown={grown}', f'{data / "heldout" / "grown"}: found a token store of other'),
    ):
        out = program.run(f'--workdir={data}', *longer, flag, DOCTOR, status=2).stdout
        assert f'FAIL  resume       {found}' in out
    # A tokenizer or a store that was removed is made again.
    shutil.rmtree(data / 'tokenizer')
    for source, found in ((trained / 'tokenizer', 'ok'), (vocabulary, 'FAIL')):
        flags = (f'--workdir={data}', *longer, f'--config.tokenizer={source}', DOCTOR)
        assert statuses(program.run(*flags, status=None).stdout)['resume'] == found
    shutil.copytree(trained / 'tokenizer', data / 'tokenizer')
    shutil.rmtree(data / 'store')
    out = program.run(f'--workdir={tmp_path / "removed"}', *longer, DOCTOR, status=None).stdout
    assert statuses(out)['resume'] == 'ok'
    other = f'--config.tokenizer={vocabulary}'
    out = program.run(f'--workdir={tmp_path / "removed"}', *longer, other, DOCTOR, status=2).stdout
    assert statuses(out)['resume'] == 'FAIL'


def test_sizes_are_computed_with_the_vocabulary_of_the_initial_model(trained: pathlib.Path, tmp_path: pathlib.Path):
    settings = pretraining_settings(pretraining_config('tiny', init=str(trained / 'export' / 'hf')))
    pieces = (trained / 'tokenizer' / 'vocab.txt').read_text(encoding='utf-8').splitlines()
    # A run that has not started replaces this vocabulary.
    (tmp_path / 'tokenizer').mkdir()
    (tmp_path / 'tokenizer' / 'vocab.txt').write_text('\n'.join([*pieces, 'oldstone']), encoding='utf-8')
    (check,) = plan.config(with_existing_vocabulary(settings, tmp_path), tmp_path)
    assert check.message.endswith(f'with a vocabulary of {len(pieces)}') and len(pieces) != settings.vocab.size


def test_a_student_that_does_not_fit_its_teacher_is_a_failure(trained: pathlib.Path, tmp_path: pathlib.Path):
    config, sizes = pretraining_config('tiny'), json.loads((trained / 'config.json').read_text())['model']
    config.model.update({name: sizes[name] for name in ('width', 'num_heads', 'mlp_dim', 'max_positions')})
    distillation(config, teacher=str(trained / 'export' / 'hf'))
    # A run that has not started replaces this vocabulary.
    (tmp_path / 'tokenizer').mkdir()
    (tmp_path / 'tokenizer' / 'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a']))

    def check(flag_keys: tuple[str, ...] = (), **model: int) -> str:
        settings = with_architecture(pretraining_settings(config), tmp_path)
        settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, **model))
        (result,) = plan.teacher(with_existing_vocabulary(settings, tmp_path), tmp_path, flag_keys)
        return f'{result.status} {result.message}'

    assert check().startswith('ok')
    assert check(width=64).startswith('FAIL config.model.width: found 64, expected 32, as in the teacher')
    assert check(num_layers=3).startswith('FAIL config.model.num_layers: found 3 blocks, expected at most 2')
    assert check(('distill.layers',)).startswith('FAIL config.distill.layers: ')
    config.model.max_positions, config.seq_len = 2 * sizes['max_positions'], sizes['max_positions'] + 1
    config.distill.student_init = 'random'
    assert f'which has {sizes["max_positions"]} positions' in check()
    config.seq_len, config.tokenizer = 32, str(tmp_path / 'tokenizer')
    assert check().startswith('FAIL config.distill.teacher: found a vocabulary of 96 pieces')


def test_a_task_that_distill_refuses_is_a_failure(
    repository: pathlib.Path, trained: pathlib.Path, tmp_path: pathlib.Path
):
    config = load_recipe(f'{repository}/configs/distilbert.py:glue:rte')
    config.distill.update(teacher=str(trained / 'export' / 'hf'), hidden=1.0)
    (check,) = plan.teacher(finetuning_settings(config), tmp_path, ())
    assert check.status == 'ok'
    config.trainable = 'head'
    (check,) = plan.teacher(finetuning_settings(config), tmp_path, ())
    assert check.status == 'FAIL' and 'config.distill: found hidden with config.trainable=head' in check.message


def test_all_failed_checks_are_reported(program: Program, tmp_path: pathlib.Path):
    """Each failed check has its own line; the last line is a normal error message."""
    changes = ('--config.corpus=/nowhere/*.txt', '--config.mesh.data=3', '--config.model.num_heads=3')
    result = program.run(f'--workdir={tmp_path / "run"}', *RUN, *changes, DOCTOR, status=2)
    checks = statuses(result.stdout)
    assert checks['config'] == checks['corpus'] == 'FAIL' and 'a divisor of width 32' in result.stdout
    assert '/nowhere/*.txt' in result.stdout and 'Traceback' not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('error: --config.run=doctor: found 2 failed checks of ')
    assert 'advice in each FAIL line above' in last


def test_a_jax_that_cannot_be_imported_is_an_error(program: Program, tmp_path: pathlib.Path):
    """For example, jaxlib may not match jax; then even the doctor cannot start."""
    message = 'jaxlib version 0.4.3 is newer than and incompatible with jax version 0.4.2. Please update both.'
    (tmp_path / 'jax.py').write_text(f'raise RuntimeError({message!r})\n')
    program = dataclasses.replace(program, environment=program.environment | {'PYTHONPATH': str(tmp_path)})
    error = assert_one_line(program.spawn(f'--workdir={tmp_path / "run"}', DOCTOR, status=2))
    assert f'jax: found {message}, expected jax and its own jaxlib; pip install' in error


@pytest.mark.slow
def test_a_running_or_unfinished_run_is_checked(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'run')
    longer = (*RUN, '--config.steps=48')
    with lock_directory(workdir, 'works in this workdir'):
        out = program.run(f'--workdir={workdir}', *longer, '--config.corpus=other.txt', DOCTOR, status=None).stdout
        assert statuses(out)['resume'] == 'ok'  # the text is not compared
        out = program.run(f'--workdir={workdir}', *longer, DOCTOR, status=None).stdout
    assert 'at work, step 24' in out and 'devices' not in statuses(out) and 'hours' not in statuses(out)
    out = program.run(f'--workdir={workdir}', *longer, '--config.data=/nowhere', DOCTOR, status=None).stdout
    assert 'finished' in out  # according to the config of the workdir


@pytest.mark.slow
def test_a_run_on_a_task_is_checked(
    program: Program, trained: pathlib.Path, tune: tuple[str, ...], tuned: pathlib.Path, tmp_path: pathlib.Path
):
    start = time.monotonic()
    out = program.run(f'--workdir={tmp_path / "run"}', *tune, DOCTOR, **GLUE).stdout
    assert 'RTE: 96 train, 33 dev records' in out and statuses(out)['hours'] == 'ok' and time.monotonic() - start < 60
    assert not (tmp_path / 'run').exists()
    out = program.run(f'--workdir={tmp_path}', *tune, '--config.task.task=all', DOCTOR, status=None, **GLUE).stdout
    assert 'run=benchmark checks the settings and the data of all tasks' in out and 'config.task.task' not in out
    sweep = ('--config.sweep.seeds=(0,1)', '--config.patience=2', '--config.eval_every=9')
    out = program.run(f'--workdir={tmp_path}', *tune, *sweep, DOCTOR, status=2, **GLUE).stdout
    assert 'config.patience: found 2 in a sweep' in out
    # No trial has config.epochs or config.batch_size.
    sweep = ('--config.sweep.epochs=(2.0,3.0)', '--config.epochs=0.01', '--config.sweep.batch_size=(8,)')
    out = program.run(f'--workdir={tmp_path}', *tune, *sweep, DOCTOR, **GLUE).stdout
    assert statuses(out)['hours'] == 'ok' and 'for the first of 2 runs (' in out
    assert 'on this machine, 8 rows' in out
    result = program.run(f'--workdir={tmp_path / "run"}', *tune, '--config.data=/nowhere', DOCTOR, status=2, **GLUE)
    assert statuses(result.stdout)['data'] == 'FAIL'
    out = program.run(f'--workdir={trained}', *tune, DOCTOR, status=2, **GLUE).stdout
    assert 'which has a pre-training, expected another folder for a fine-tuning' in out
    out = program.run(f'--workdir={tuned}', *tune, DOCTOR, **GLUE, status=None).stdout
    assert 'different answers to different records' in out
