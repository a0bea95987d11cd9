"""A hanging run ends and can be resumed, and goodput counts the time of both processes; steps are traced."""

import pathlib
import re

import pytest
from running import RUN, Program, rows

from bertjax.training.health.goodput import read_goodput

# Startup code for a run in which the tenth batch never arrives.
HANGS = """
    import time
    from bertjax.data import loader
    next_batch, taken = loader.Loader.__next__, []

    def hang_at_the_tenth(self):
        taken.append(0)
        while len(taken) == 10:
            time.sleep(1)
        return next_batch(self)

    loader.Loader.__next__ = hang_at_the_tenth
"""


@pytest.mark.slow
def test_a_hang_ends_with_status_4_and_the_same_command_resumes(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = tmp_path / 'run'
    hanging = program.with_startup(tmp_path / 'startup', HANGS)
    err = hanging.spawn(f'--workdir={workdir}', *RUN, '--config.hang_minutes=0.05', status=4).stderr
    assert 'hang_at_the_tenth' in err and 'loop.py' in err
    last = err.strip().splitlines()[-1]
    assert last.startswith('stopped: no progress for 0.05') and 'minutes waiting for data' in last
    assert 'hang_at_the_tenth' in (workdir / 'hang.log').read_text()
    assert rows(workdir / 'ledger.jsonl')[-1]['step'] == 9

    end = program.spawn(f'--workdir={workdir}', *RUN)
    assert (workdir / 'ledger.jsonl').read_bytes() == (trained / 'ledger.jsonl').read_bytes()
    found = read_goodput(workdir)
    assert found.processes == 2 and found.seconds['restore'] > 0 and f'goodput {found}' in end.stdout


@pytest.mark.slow
def test_the_selected_steps_are_traced(program: Program, tmp_path: pathlib.Path):
    error = program.error(f'--workdir={tmp_path}', *RUN, '--config.profile=20:26')
    assert "config.profile: found '20:26', expected steps up to 24, the last of the run" in error
    assert error.rstrip().endswith('for example --config.profile=19:25')
    # A new process, because a trace has all compiled programs of its process.
    out = program.spawn(f'--workdir={tmp_path}', *RUN, '--config.steps=8', '--config.profile=3:6').stdout
    assert f'traced steps 3 to 5: xprof --logdir={tmp_path / "profile"}' in out
    (trace,) = (tmp_path / 'profile').rglob('*.xplane.pb')
    assert b'step_num' in trace.read_bytes()
    assert not re.search(rb'\$\w+\.py:\d', trace.read_bytes()), 'calls of Python functions, which can end the process'
