"""Tests that the cost of a small step equals the record, and that the model of kernels is near the compiler's figures.

After an intended change, or with another jax or libtpu, run `python tests/cost/golden_steps.py --renew` and give the
reason in CHANGELOG.md.
"""

import json
import os
import pathlib
import subprocess
import sys

import golden_steps
import pytest

pytestmark = pytest.mark.slow


def _run(script: str, *arguments: str) -> dict:
    """Returns the JSON that a script of this folder prints.

    The script runs in a separate process, so that a crash of the TPU compiler does not end pytest.
    """
    pytest.importorskip('libtpu', reason="needs the TPU compiler of the extras 'tpu' and 'test'")
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    command = [sys.executable, str(pathlib.Path(__file__).parent / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flops_bytes_cycles_memory_and_collectives_equal_the_record():
    golden = json.loads(golden_steps.FILE.read_text(encoding='utf-8'))
    if golden_steps.versions() != golden['versions']:
        pytest.skip(f'the record is of {golden["versions"]}, but {golden_steps.versions()} is installed')
    assert _run('golden_steps.py')['step'] == golden['step']


def test_the_model_of_kernels_is_near_the_compilers_estimate_of_the_same_work():
    """The model assumes that a kernel reaches 60 % of the peak of the chip.

    The compiler assumes 90 % of the peak for its own products, and 57 % of the bandwidth for the sum of two arrays.
    The step with kernels transposes operands that XLA reads without a transpose.
    """
    bounds = {'product': (1.3, 1.7), 'sum': (0.8, 1.1), 'step': (1.3, 2.3)}
    results = _run('kernel_steps.py')
    assert results.keys() == bounds.keys()
    for name, (low, high) in bounds.items():
        assert low < results[name]['kernel'] / results[name]['xla'] < high, (name, results[name])
        assert results[name]['modelled_share'] > 0.5, name  # Most of the time is in the kernel.
