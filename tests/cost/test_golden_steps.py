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
    """A kernel is taken to reach 60 % of what the chip can. The compiler takes its own products to reach nine tenths of
    the peak, and sums of two arrays 57 % of the bandwidth. A step of kernels transposes what XLA reads as it lies."""
    bounds = {'product': (1.3, 1.7), 'sum': (0.8, 1.1), 'step': (1.3, 2.3)}
    found = _run('kernel_steps.py')
    assert found.keys() == bounds.keys()
    for name, (least, most) in bounds.items():
        assert least < found[name]['kernel'] / found[name]['xla'] < most, (name, found[name])
        assert found[name]['modelled_share'] > 0.5, name  # the kernel is where the time goes
