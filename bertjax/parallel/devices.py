"""The devices of a program that is going to compute on them."""

import ctypes
import platform

import jax

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def claim_devices() -> list[jax.Device]:
    """All devices. On a CPU the process from now on keeps memory that is freed, for the computations that follow.

    XLA allocates a step's temporary arrays anew for every step. glibc gives blocks above 32 MiB back to the kernel as
    soon as they are freed, so that every step has the kernel clear all their pages again, which small models feel.
    Only the main thread's heap can hold such blocks, so computations also run in the thread that asks for them.

    To be called by the main thread before JAX has computed anything; later it does no good.
    """
    jax.config.update('jax_cpu_enable_async_dispatch', False)
    devices = jax.devices()
    if devices[0].platform == 'cpu' and platform.libc_ver()[0] == 'glibc':
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return devices
