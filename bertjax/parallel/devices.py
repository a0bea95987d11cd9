"""The devices that a program computes on, and their memory."""

import ctypes
import platform

import jax
import psutil
from jax.sharding import Mesh

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def claim_devices() -> list[jax.Device]:
    """All devices. On a CPU the process also keeps freed memory from now on, for the computations that follow.

    XLA allocates a step's temporary arrays anew in every step. glibc returns blocks above 32 MiB to the kernel as soon
    as they are freed, so that the kernel has to clear all their pages again in every step, which slows small models
    down. Only the main thread's heap can keep such blocks, so computations run in the thread that calls them.

    Must be called by the main thread before JAX has computed anything; later it has no effect.
    """
    jax.config.update('jax_cpu_enable_async_dispatch', False)
    devices = jax.devices()
    if devices[0].platform == 'cpu' and platform.libc_ver()[0] == 'glibc':
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return devices


def device_memory(mesh: Mesh) -> int:
    """Bytes that each device of a mesh has; devices of a CPU share those of the host."""
    device = mesh.local_devices[0]
    limit = (device.memory_stats() or {}).get('bytes_limit')
    return limit or psutil.virtual_memory().total // len(mesh.local_devices)
