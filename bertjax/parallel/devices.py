"""The devices that a program computes on."""

import ctypes
import platform

import jax

from bertjax.parallel.compile_cache import keep_programs

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def claim_devices() -> list[jax.Device]:
    """All devices. From now on compiled programs are kept on disk, see `compile_cache.keep_programs`, and on a CPU the
    process keeps freed memory for the computations that follow.

    XLA allocates a step's temporary arrays anew in every step. glibc returns blocks above 32 MiB to the kernel as soon
    as they are freed, so that the kernel has to clear all their pages again in every step, which slows small models
    down. Only the main thread's heap can keep such blocks, so computations run in the thread that calls them.

    Must be called by the main thread before JAX has computed anything; later it has no effect.
    """
    jax.config.update('jax_cpu_enable_async_dispatch', False)
    keep_programs()
    devices = jax.devices()
    if devices[0].platform == 'cpu' and platform.libc_ver()[0] == 'glibc':
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return devices
