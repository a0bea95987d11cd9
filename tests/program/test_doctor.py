"""run=doctor: it looks and says, writes nothing, and ends with 2 where something stands in the way."""

import dataclasses
import pathlib
import time

import pytest
from running import GLUE, RUN, Program, assert_one_line, copied

from bertjax.files.atomic import lock_directory

DOCTOR = '--config.run=doctor'


def statuses(out: str) -> dict[str, str]:
    """{what: status} of the lines; of several the worst."""
    found: dict[str, str] = {}
    for line in out.splitlines():
        status, _, rest = line.strip().partition(' ')
        if status in ('ok', 'warn', 'FAIL'):
            about = rest[:16].strip().split('  ')[0]
            found[about] = max(found.get(about, ''), status, key=('', 'ok', 'warn', 'FAIL').index)
    return found


@pytest.mark.slow
def test_before_a_run(program: Program, tmp_path: pathlib.Path):
    new = tmp_path / 'new'
    out = program.run(f'--workdir={new}', *RUN, DOCTOR).stdout
    found = statuses(out)
    assert {'versions', 'devices', 'workdir', 'config', 'tokenizer', 'corpus', 'disk', 'memory', 'hours'} == set(found)
    assert 'FAIL' not in found.values() and 'from steps timed on this machine, 8 x 32 in 0.0' in out
    assert 'no check failed' in out and not new.exists()


def test_of_a_run(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """A finished one: nothing of it is measured again, and nothing is written."""
    before = {path: path.stat().st_mtime_ns for path in trained.rglob('*')}
    out = program.run(f'--workdir={trained}', *RUN, DOCTOR, status=None).stdout
    found = statuses(out)
    assert 'finished, step 24 of 24' in out and 'hours' not in found and 'corpus' not in found
    assert {'run', 'numbers', 'MLM loss', 'input', 'goodput'} <= set(found) and 'a model without context' in out
    assert {path: path.stat().st_mtime_ns for path in trained.rglob('*')} == before


def test_what_stands_in_the_way(program: Program, tmp_path: pathlib.Path):
    """All of it at once, each in a line; the last one is that of any mistake."""
    changes = ('--config.corpus=/nowhere/*.txt', '--config.mesh.data=3', '--config.model.num_heads=3')
    result = program.run(f'--workdir={tmp_path / "run"}', *RUN, *changes, DOCTOR, status=2)
    found = statuses(result.stdout)
    assert found['config'] == found['corpus'] == 'FAIL' and 'a divisor of width 32' in result.stdout
    assert '/nowhere/*.txt' in result.stdout and 'Traceback' not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('error: --config.run=doctor: found 2 failed checks of ')
    assert 'advice in each FAIL line above' in last


def test_a_jax_that_cannot_be_imported(program: Program, tmp_path: pathlib.Path):
    """As where jaxlib is another one's: the doctor could not be asked."""
    said = 'jaxlib version 0.4.3 is newer than and incompatible with jax version 0.4.2. Please update both.'
    (tmp_path / 'jax.py').write_text(f'raise RuntimeError({said!r})\n')
    program = dataclasses.replace(program, environment=program.environment | {'PYTHONPATH': str(tmp_path)})
    error = assert_one_line(program.spawn(f'--workdir={tmp_path / "run"}', DOCTOR, status=2))
    assert f'jax: found {said}, expected jax and its own jaxlib; pip install' in error


@pytest.mark.slow
def test_of_a_run_that_is_at_work_or_half_done(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    work = copied(trained, tmp_path / 'run')
    longer = (*RUN, '--config.steps=48')
    with lock_directory(work, 'works in this workdir'):
        out = program.run(f'--workdir={work}', *longer, DOCTOR, status=None).stdout
    assert 'at work, step 24' in out and 'devices' not in statuses(out) and 'hours' not in statuses(out)
    out = program.run(f'--workdir={work}', *longer, '--config.data=/nowhere', DOCTOR, status=None).stdout
    assert 'finished' in out  # by its own config


@pytest.mark.slow
def test_of_a_task(program: Program, tune: tuple[str, ...], tuned: pathlib.Path, tmp_path: pathlib.Path):
    began = time.monotonic()
    out = program.run(f'--workdir={tmp_path / "run"}', *tune, DOCTOR, **GLUE).stdout
    assert 'RTE: 96 train, 33 dev records' in out and statuses(out)['hours'] == 'ok' and time.monotonic() - began < 60
    assert not (tmp_path / 'run').exists()
    result = program.run(f'--workdir={tmp_path / "run"}', *tune, '--config.data=/nowhere', DOCTOR, status=2, **GLUE)
    assert statuses(result.stdout)['data'] == 'FAIL'
    out = program.run(f'--workdir={tuned}', *tune, DOCTOR, **GLUE, status=None).stdout
    assert 'different answers to different records' in out
