"""Tests the XLA flags for machines with GPUs: XLA knows them, and the user's flags are not changed."""

import os
import subprocess
import sys

from bertjax.parallel import devices
from bertjax.parallel.devices import GPU_FLAGS, set_gpu_flags


def test_flags_of_the_user_are_not_changed(monkeypatch):
    monkeypatch.setenv('XLA_FLAGS', '--xla_a=1 --xla_gpu_enable_latency_hiding_scheduler=false')
    set_gpu_flags()
    set_gpu_flags()
    assert os.environ['XLA_FLAGS'].split() == [
        '--xla_a=1',
        '--xla_gpu_enable_latency_hiding_scheduler=false',
        '--xla_gpu_exclude_nondeterministic_ops=true',
    ]


def test_flags_are_set_if_there_may_be_a_gpu(monkeypatch):
    monkeypatch.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])
    called = []
    monkeypatch.setattr(devices, 'set_gpu_flags', lambda: called.append(True))
    monkeypatch.setattr(devices, '_has_plugins', lambda: True)
    for may_have_gpu in (False, True):
        monkeypatch.setattr(devices, '_may_have_nvidia_gpu', lambda result=may_have_gpu: result)
        devices.claim_devices()
        assert bool(called) == may_have_gpu


def test_xla_knows_the_flags():
    """XLA would end the process if it did not know a flag."""
    code = 'import jax; print(jax.numpy.zeros(()) + 1)'
    flags = ' '.join(f'--{name}={str(value).lower()}' for name, value in GPU_FLAGS.items())
    environment = os.environ | {'XLA_FLAGS': flags}
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == '1.0', done.stderr
