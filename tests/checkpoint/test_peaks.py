"""One device never holds a checkpoint of another mesh twice when it evaluates, fine-tunes or exports it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='asks the kernel for the peak of the resident memory')
def test_peaks_of_reading_and_exporting(tmp_path: pathlib.Path):
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    script = pathlib.Path(__file__).with_name('peaks.py')

    def ran(doing: str) -> str:
        command = [sys.executable, str(script), doing, str(tmp_path)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    ran('write')
    peaks = json.loads(ran('read'))
    # Memory beyond the model: a few arrays in transfer, and allocations of the libraries at their first use.
    assert 0.9 < peaks['state'] < 1.5
    assert 0.9 < peaks['parameters'] < 1.5
    assert peaks['export'] < 0.2  # one tensor and the libraries; the parameters are already in memory
