"""The devices that a program computes on, and their memory."""

import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import pathlib
import platform

import jax
import psutil
from jax.sharding import Mesh

from bertjax.errors import UserError
from bertjax.parallel.compile_cache import enable_compile_cache
from bertjax.parallel.compiler_flags import set_compiler_flags

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_GOOGLE = '0x1ae0'  # vendor of TPUs on the PCI bus
# Names in the environment that libtpu and JAX set themselves, on machines without TPUs too.
_OF_LIBRARIES = ('TPU_LIBRARY_PATH', 'TPU_SKIP_MDS_QUERY')


def leave_out_absent_tpus() -> None:
    """Lets JAX look for CPUs alone where libtpu would look for TPUs on a machine that can have nothing but CPUs, unless
    a platform was chosen.

    Where libtpu is installed, to compile for TPUs that are elsewhere, JAX would start it to look for TPUs here, and it
    prints six lines of errors when there are none. Any sign of a TPU or a GPU, or a plug-in of another platform, leaves
    JAX as it is, and all that it says to be seen: that a GPU lies idle, for example. Must be called before JAX has
    computed anything; later it has no effect.
    """
    if jax.config.jax_platforms is None and importlib.util.find_spec('libtpu') and not _may_have_more_than_cpus():
        jax.config.update('jax_platforms', 'cpu')


def _may_have_more_than_cpus() -> bool:
    return may_have_tpu() or _may_have_nvidia_gpu() or _has_plugins()


def unused_accelerator(platform: str) -> str:
    """'TPU' or 'GPU' where this machine speaks of one while JAX computes on `platform`, a CPU; else ''."""
    if platform != 'cpu':
        return ''
    return 'TPU' if may_have_tpu() else 'GPU' if _may_have_nvidia_gpu() else ''


def may_have_tpu() -> bool:
    """Whether anything on this machine speaks of a TPU: a device on the bus, a device file, the environment."""
    named = any(name.startswith(('TPU_', 'JAX_FORCE_TPU')) and name not in _OF_LIBRARIES for name in os.environ)
    files = glob.glob('/dev/accel*') or [path for path in glob.glob('/dev/vfio/*') if path != '/dev/vfio/vfio']
    vendors = (pathlib.Path(path).read_text().strip() for path in glob.glob('/sys/bus/pci/devices/*/vendor'))
    return named or bool(files) or _GOOGLE in vendors


def _may_have_nvidia_gpu() -> bool:
    """Whether there is a device file of NVIDIA's driver, or that of WSL: then JAX says what it lacks to use the GPU."""
    return bool(glob.glob('/dev/nvidia*') or glob.glob('/dev/dxg'))


def _has_plugins() -> bool:
    """Whether JAX can be asked for more than CPUs and TPUs: the plug-ins of CUDA, for example."""
    return bool(importlib.metadata.entry_points(group='jax_plugins') or importlib.util.find_spec('jax_plugins'))


def claim_devices() -> list[jax.Device]:
    """Returns all devices, after it has prepared the process for them.

    It enables the compile cache (`compile_cache.enable_compile_cache`), sets `compiler_flags.FLAGS` if there may be a
    GPU, and on a CPU makes the process keep freed memory for later computations.

    XLA allocates a step's temporary arrays anew in every step. glibc returns blocks above 32 MiB to the kernel as soon
    as they are freed, so that the kernel has to clear all their pages again in every step, which slows small models
    down. Only the main thread's heap can keep such blocks, so computations run in the thread that calls them.

    Must be called by the main thread before JAX has computed anything; later it has no effect.

    Raises:
      UserError: where the devices are those of several processes that have not met, of a TPU slice: each would train
        alone, and write into one workdir.
    """
    jax.config.update('jax_cpu_enable_async_dispatch', False)
    leave_out_absent_tpus()
    if _may_have_nvidia_gpu() and _has_plugins():
        set_compiler_flags()
    enable_compile_cache()
    devices = jax.devices()
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        found = f'one of {jax.process_count()} processes, by its devices; nothing else here speaks of the others'
        fix = 'give --coordinator_address, --num_processes and --process_id, see docs/scaling.md'
        raise UserError('this process', found, 'one that knows the others', fix)
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
