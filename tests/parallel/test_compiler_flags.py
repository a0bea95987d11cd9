"""What XLA is told on machines with GPUs: flags that it knows, beside those of the user."""

import os
import subprocess
import sys

from bertjax.parallel import devices
from bertjax.parallel.compiler_flags import FLAGS, VARIABLE, set_compiler_flags


def test_the_users_own_stay_as_they_are(monkeypatch):
    monkeypatch.setenv(VARIABLE, '--xla_a=1 --xla_gpu_enable_latency_hiding_scheduler=false')
    set_compiler_flags()
    set_compiler_flags()
    assert os.environ[VARIABLE].split() == [
        '--xla_a=1',
        '--xla_gpu_enable_latency_hiding_scheduler=false',
        '--xla_gpu_exclude_nondeterministic_ops=true',
    ]


def test_they_are_set_where_a_gpu_may_be(monkeypatch):
    monkeypatch.setenv(VARIABLE, os.environ[VARIABLE])
    called = []
    monkeypatch.setattr(devices, 'set_compiler_flags', lambda: called.append(True))
    monkeypatch.setattr(devices, '_has_plugins', lambda: True)
    for there in (False, True):
        monkeypatch.setattr(devices, '_may_have_nvidia_gpu', lambda there=there: there)
        devices.claim_devices()
        assert bool(called) == there


def test_this_xla_knows_them():
    """It ends a process that names others."""
    code = 'import jax; print(jax.numpy.zeros(()) + 1)'
    environment = os.environ | {VARIABLE: ' '.join(f'--{name}={str(value).lower()}' for name, value in FLAGS.items())}
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == '1.0', done.stderr
