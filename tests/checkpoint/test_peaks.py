"""Tests that one device never has two copies of a checkpoint of another mesh in memory."""

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='reads the peak memory from /proc')
def test_reading_and_exporting_need_no_second_copy(tmp_path: pathlib.Path):
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    script = pathlib.Path(__file__).with_name('peaks.py')

    def run(command: str) -> str:
        arguments = [sys.executable, str(script), command, str(tmp_path)]
        return subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout

    run('write')
    peaks = json.loads(run('read'))
    # Beyond the model, memory has a few arrays in transfer, and what the libraries allocate at their first use.
    assert 0.9 < peaks['state'] < 1.5
    assert 0.9 < peaks['parameters'] < 1.5
    assert peaks['export'] < 0.2  # One tensor and the libraries; the parameters are already in memory.
