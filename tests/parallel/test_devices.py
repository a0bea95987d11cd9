"""What a computing program does to its process: memory is kept and not fetched from the kernel for every step."""

import platform
import subprocess
import sys

import pytest

# The pages that the kernel had to clear for a call whose temporary array has 256 MiB. The median of nine: now and then
# something small has taken a piece of the heap between two calls, and malloc makes it longer once more.
FAULTS = """
import resource, statistics
import jax, jax.numpy as jnp
from bertjax.parallel.devices import claim_devices

devices = {claim}()
work = jax.jit(lambda x: (x @ x.T) @ x)
x = jax.device_put(jnp.ones((8192, 8)), devices[0])
counts = [0]
for _ in range(9):
    work(x).block_until_ready()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(statistics.median(after - before for before, after in zip(counts, counts[1:])))
"""


def faults(claim: str) -> int:
    environment = {'JAX_PLATFORMS': 'cpu', 'PATH': ''}
    program = [sys.executable, '-c', FAULTS.format(claim=claim)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='only the allocator of glibc is told to keep memory')
def test_temporary_arrays_do_not_come_from_the_kernel_each_time():
    assert faults('claim_devices') < faults('jax.devices') / 10
