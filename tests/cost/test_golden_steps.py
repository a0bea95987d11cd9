"""The cost of small steps is the recorded one, and the model of kernels is near the compiler's estimates.

After an intended change, or with another jax or libtpu: `python tests/cost/golden_steps.py --renew`, and say why in
CHANGELOG.md.
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
    """What a script of this folder prints; by a process: a crash of the TPU compiler must not take pytest along."""
    pytest.importorskip('libtpu', reason="needs the TPU compiler, of the extras 'tpu' and 'test'")
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    command = [sys.executable, str(pathlib.Path(__file__).parent / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flops_bytes_cycles_memory_and_collectives_are_the_recorded_ones():
    golden = json.loads(golden_steps.FILE.read_text(encoding='utf-8'))
    if golden_steps.versions() != golden['versions']:
        pytest.skip(f'the record is of {golden["versions"]}, here is {golden_steps.versions()}')
    assert _run('golden_steps.py')['steps'] == golden['steps']


def test_the_model_of_kernels_is_near_the_compilers_estimate_of_the_same():
    """Of a product and of a sum, as kernels and by XLA alone: within a factor of 1.7, and the whole step, too."""
    for name, found in _run('kernel_steps.py').items():
        assert found['kernel'] == pytest.approx(found['xla'], rel=0.7), (name, found)
        assert found['modelled_share'] > 0.5, name  # the kernel is where the time goes
