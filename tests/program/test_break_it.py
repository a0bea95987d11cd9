"""Runs benchmarks/break_it.py with a few attempts instead of hundreds."""

import pathlib
import subprocess
import sys

import pytest
from running import Program

SMALL = {'flips': 2, 'files': 1, 'corpora': 2, 'configs': 1, 'overrides': 1, 'api': 2, 'tasks': 1, 'end_to_end': 1}


@pytest.mark.slow
def test_a_few_attempts_find_no_fault(program: Program, tmp_path: pathlib.Path):
    """Tries all kinds except kills, which test_kills.py and test_resume.py test."""
    counts = [f'--{kind}={count}' for kind, count in {'kills': 0, 'operations': 0, **SMALL}.items()]
    command = [sys.executable, 'benchmarks/break_it.py', f'--out={tmp_path}', *counts]
    options = {'cwd': program.repository, 'env': program.environment}
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    assert result.returncode == 0, f'{result.stdout}\n{result.stderr}'
    for kind, count in SMALL.items():
        assert f'{kind:<16}{count:>6} tried {count:>6} held' in result.stdout
