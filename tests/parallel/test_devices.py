"""Preparation of a process for its devices: freed memory is kept for the next step; absent TPUs are not searched."""

import fnmatch
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys

import jax
import pytest

from bertjax.errors import UserError
from bertjax.parallel import devices
from bertjax.parallel.devices import leave_out_absent_tpus, may_have_tpu

# The pages that the kernel had to clear for a call whose temporary array has 256 MiB. The median of 31: until the heap
# has settled, something small now and then takes a piece of it between two calls, and malloc makes it longer once more.
# On a busy machine five of the first nine calls have been such.
FAULTS = """
import resource, statistics
import jax, jax.numpy as jnp
from bertjax.parallel.devices import claim_devices

devices = {claim}()
work = jax.jit(lambda x: (x @ x.T) @ x)
x = jax.device_put(jnp.ones((8192, 8)), devices[0])
counts = [0]
for _ in range(31):
    work(x).block_until_ready()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(statistics.median(after - before for before, after in zip(counts, counts[1:])))
"""


# Prints what JAX logs about TPUs when it starts, and its platforms.
STARTED = """
import jax
from bertjax.parallel.devices import claim_devices

print(claim_devices()[0].platform, jax.config.jax_platforms)
"""


@pytest.mark.skipif(may_have_tpu(), reason='JAX has to look for what this machine may have')
@pytest.mark.parametrize(
    ('chosen', 'platforms'), [({}, 'cpu'), pytest.param({'TPU_WORKER_ID': '0'}, 'None', marks=pytest.mark.slow)]
)
def test_absent_tpus_are_not_searched(chosen: dict[str, str], platforms: str):
    """libtpu prints nothing if it is only installed to compile; any sign of a local TPU leaves JAX unchanged."""
    pytest.importorskip('libtpu', reason='it would complain')
    if importlib.metadata.entry_points(group='jax_plugins') or importlib.util.find_spec('jax_plugins'):
        pytest.skip('JAX has to look for the devices of its plug-ins')
    path = {'PATH': '', 'PYTHONPATH': os.environ.get('PYTHONPATH', '')}
    done = subprocess.run(
        [sys.executable, '-c', STARTED], env=path | chosen, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ['cpu', platforms]
    assert ('TPU' in done.stderr) == bool(chosen)


@pytest.mark.parametrize(
    ('installed', 'there', 'chosen'),
    [
        (['libtpu'], [], 'cpu'),
        ([], [], None),
        (['libtpu'], ['/dev/nvidia0'], None),
        (['libtpu'], ['/dev/dxg'], None),
        (['libtpu'], ['/dev/accel0'], None),
        (['libtpu', 'jax_plugins'], [], None),
    ],
)
def test_only_libtpu_is_silenced_and_only_where_nothing_but_cpus_can_be(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], there: list[str], chosen: str | None
):
    """JAX warns about an unusable GPU only if no platform is chosen, so the platform is set only on CPU machines."""
    monkeypatch.setattr(devices.glob, 'glob', lambda pattern: fnmatch.filter(there, pattern))
    monkeypatch.setattr(devices.importlib.util, 'find_spec', lambda name: name if name in installed else None)
    monkeypatch.setattr(devices.importlib.metadata, 'entry_points', lambda group: [])
    monkeypatch.setattr(devices.os, 'environ', {})
    before = jax.config.jax_platforms
    try:
        jax.config.update('jax_platforms', None)
        leave_out_absent_tpus()
        assert jax.config.jax_platforms == chosen
    finally:
        jax.config.update('jax_platforms', before)


def faults(claim: str) -> int:
    environment = {'JAX_PLATFORMS': 'cpu', 'PATH': ''}
    program = [sys.executable, '-c', FAULTS.format(claim=claim)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='only the allocator of glibc is told to keep memory')
def test_temporary_arrays_reuse_freed_memory():
    assert faults('claim_devices') < faults('jax.devices') / 10


def test_devices_of_unconnected_processes_are_refused(monkeypatch: pytest.MonkeyPatch):
    """A multi-host TPU slice has such devices if the processes were started without flags."""
    monkeypatch.setattr(jax, 'process_count', lambda: 4)
    with pytest.raises(UserError, match=r'found devices of 4 processes.*--coordinator_address'):
        devices.claim_devices()
