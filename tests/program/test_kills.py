"""After a kill at a file operation of a save or an export, the same command continues and nothing is lost."""

import pathlib
import subprocess
import sys

import pytest
from running import Program


@pytest.mark.parametrize(
    ('work', 'stride', 'least'),
    [
        ('next', 25, 4),
        *(
            pytest.param(work, stride, least, marks=pytest.mark.slow)
            for work, stride, least in (('first', 8, 10), ('next', 8, 11), ('export', 2, 8))
        ),
    ],
)
def test_saves_and_exports_survive_kills(program: Program, tmp_path: pathlib.Path, work: str, stride: int, least: int):
    """Kills at every `stride`-th operation; benchmarks/break_it.py kills at every operation."""
    script = pathlib.Path(__file__).with_name('killed_saves.py')
    command = [sys.executable, str(script), work, str(tmp_path), str(stride)]
    done = subprocess.run(command, env=program.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.splitlines()[-1]) >= least
