"""A checkpoint of another mesh is never in memory twice, on one device that evaluates, tunes or exports it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='asks the kernel for the peak of the resident memory')
def test_it_is_read_and_exported_with_little_beside_it(tmp_path: pathlib.Path):
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    script = pathlib.Path(__file__).with_name('peaks.py')

    def ran(doing: str) -> str:
        command = [sys.executable, str(script), doing, str(tmp_path)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    ran('write')
    peaks = json.loads(ran('read'))
    # Beside the whole of it there are a few arrays on their way, and what the libraries take when they are first used.
    assert 0.9 < peaks['state'] < 1.5
    assert 0.9 < peaks['parameters'] < 1.5
    assert peaks['export'] < 0.2  # a tensor, and what the libraries take; the parameters themselves are there already
