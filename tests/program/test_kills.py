"""After a kill at a file operation of a save or an export, the same command continues and nothing is lost."""

import json
import pathlib
import subprocess
import sys

import pytest
from running import Program

# At least so many file operations are covered.
MINIMUM = {'first': 80, 'next': 88, 'export': 16}


@pytest.mark.parametrize(
    'strides', [{'next': 25}, pytest.param({'first': 11, 'next': 11, 'export': 3}, marks=pytest.mark.slow)]
)
def test_saves_and_exports_survive_kills(program: Program, tmp_path: pathlib.Path, strides: dict[str, int]):
    """Kills at every `stride`-th operation; benchmarks/break_it.py kills at every operation."""
    script = pathlib.Path(__file__).with_name('killed_saves.py')
    works = [f'{work}:{stride}' for work, stride in strides.items()]
    command = [sys.executable, str(script), str(tmp_path), *works]
    done = subprocess.run(command, env=program.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    kills = json.loads(done.stdout.splitlines()[-1])
    assert all(kills[work] * stride >= MINIMUM[work] for work, stride in strides.items()), kills
