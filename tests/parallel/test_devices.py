"""Tests the memory of a process, the search for absent TPUs, and the XLA flags for GPUs."""

import fnmatch
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import subprocess
import sys

import jax
import pytest

from bertjax.errors import UserError
from bertjax.parallel import devices
from bertjax.parallel.devices import GPU_FLAGS, leave_out_absent_tpus, may_have_tpu, set_gpu_flags
from bertjax.parallel.mesh import make_mesh

# Prints the number of page faults of a call with a temporary array of 64 MiB: the median of 31 calls. In some of the
# first calls, a small allocation takes a piece of the heap, so malloc extends the heap again. On a busy machine, this
# happened in five of the first nine calls.
FAULTS = """
import resource, statistics
import jax, jax.numpy as jnp
from bertjax.parallel.devices import claim_devices

devices = {claim}()
work = jax.jit(lambda x: (x @ x.T) @ x)
x = jax.device_put(jnp.ones((4096, 8)), devices[0])
counts = [0]
for _ in range(31):
    work(x).block_until_ready()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(statistics.median(after - before for before, after in zip(counts, counts[1:])))
"""


# Prints what JAX logs about TPUs when it starts, and its platforms.
START = """
import jax
from bertjax.parallel.devices import claim_devices

print(claim_devices()[0].platform, jax.config.jax_platforms)
"""


@pytest.mark.skipif(may_have_tpu(), reason='this machine has signs of a TPU')
def test_a_network_card_of_google_is_not_a_tpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / 'vendor').write_text('0x1ae0\n')
    files = {'/sys/bus/pci/devices/*/vendor': [str(tmp_path / 'vendor')]}
    monkeypatch.setattr(devices.glob, 'glob', lambda pattern: files.get(pattern, []))
    assert may_have_tpu()  # the class is unknown
    for kind, expected in (('0x020000', False), ('0x010802', False), ('0x120000', True)):
        (tmp_path / 'class').write_text(kind + '\n')
        assert may_have_tpu() is expected, kind


@pytest.mark.skipif(may_have_tpu(), reason='JAX must search for the TPU of this machine')
@pytest.mark.parametrize(
    ('chosen', 'platforms'), [({}, 'cpu'), pytest.param({'TPU_WORKER_ID': '0'}, 'None', marks=pytest.mark.slow)]
)
def test_absent_tpus_are_not_searched(chosen: dict[str, str], platforms: str):
    """Without signs of a TPU, libtpu prints nothing. With a sign, the platforms of JAX are not changed."""
    pytest.importorskip('libtpu', reason="needs the extra 'tpu'")
    if importlib.metadata.entry_points(group='jax_plugins') or importlib.util.find_spec('jax_plugins'):
        pytest.skip('JAX must search for the devices of its plug-ins')
    path = {'PATH': '', 'PYTHONPATH': os.environ.get('PYTHONPATH', '')}
    done = subprocess.run(
        [sys.executable, '-c', START], env=path | chosen, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ['cpu', platforms]
    assert ('TPU' in done.stderr) == bool(chosen)


@pytest.mark.parametrize(
    ('installed', 'device_files', 'platforms'),
    [
        (['libtpu'], [], 'cpu'),
        ([], [], None),
        (['libtpu'], ['/dev/nvidia0'], None),
        (['libtpu'], ['/dev/dxg'], None),
        (['libtpu'], ['/dev/accel0'], None),
        (['libtpu', 'jax_plugins'], [], None),
    ],
)
def test_the_platform_is_set_only_if_libtpu_is_installed_and_there_can_be_only_cpus(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], device_files: list[str], platforms: str | None
):
    """If a platform is set, JAX does not warn about an unusable GPU."""
    monkeypatch.setattr(devices.glob, 'glob', lambda pattern: fnmatch.filter(device_files, pattern))
    monkeypatch.setattr(devices.importlib.util, 'find_spec', lambda name: name if name in installed else None)
    monkeypatch.setattr(devices.importlib.metadata, 'entry_points', lambda group: [])
    monkeypatch.setattr(devices.os, 'environ', {})
    before = jax.config.jax_platforms
    try:
        jax.config.update('jax_platforms', None)
        leave_out_absent_tpus()
        assert jax.config.jax_platforms == platforms
    finally:
        jax.config.update('jax_platforms', before)


def page_faults(claim: str) -> int:
    environment = {'JAX_PLATFORMS': 'cpu', 'PATH': ''}
    program = [sys.executable, '-c', FAULTS.format(claim=claim)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='only the allocator of glibc is configured')
def test_temporary_arrays_reuse_freed_memory():
    assert page_faults('claim_devices') < page_faults('jax.devices') / 10


def test_devices_of_unconnected_processes_are_refused(monkeypatch: pytest.MonkeyPatch):
    """The processes of a multi-host TPU slice have such devices if they are started without flags."""
    monkeypatch.setattr(jax, 'process_count', lambda: 4)
    with pytest.raises(UserError, match=r'found devices of 4 processes.*--coordinator_address'):
        devices.claim_devices()


@pytest.mark.parametrize(
    ('error', 'found'), [(AssertionError(), 'no platform of JAX_PLATFORMS=cpu'), (RuntimeError('a\nb'), 'a')]
)
def test_devices_with_which_jax_cannot_start_are_an_error(error, found, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(jax, 'devices', fail)
    with pytest.raises(UserError, match=f"JAX's devices: found {found}, expected .* such as JAX_PLATFORMS=cpu"):
        make_mesh({'data': -1, 'fsdp': 1, 'tensor': 1})


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
