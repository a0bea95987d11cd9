"""A kill at every file operation of saving and of exporting: the same command continues, and nothing whole was lost."""

import pathlib
import subprocess
import sys

import pytest
from running import Program


@pytest.mark.parametrize(
    ('what', 'stride', 'least'),
    [
        ('next', 25, 4),
        *(
            pytest.param(what, stride, least, marks=pytest.mark.slow)
            for what, stride, least in (('first', 8, 10), ('next', 8, 11), ('export', 2, 8))
        ),
    ],
)
def test_a_kill_at_each_operation(program: Program, tmp_path: pathlib.Path, what: str, stride: int, least: int):
    """At some of them; with a stride of 1, or by benchmarks/break_it.py, at all."""
    script = pathlib.Path(__file__).with_name('killed_saves.py')
    command = [sys.executable, str(script), what, str(tmp_path), str(stride)]
    done = subprocess.run(command, env=program.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.splitlines()[-1]) >= least
