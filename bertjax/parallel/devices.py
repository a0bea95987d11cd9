"""The devices of this process and their memory."""

import glob
import importlib.metadata
import importlib.util
import os
import pathlib

import jax
from jax.sharding import Mesh

from bertjax.errors import UserError, first_line
from bertjax.memory import host_memory, keep_freed_memory
from bertjax.parallel.compile_cache import enable_compile_cache

# XLA flags for machines with GPUs, unless XLA_FLAGS has other values. Other flags, and all flags for TPUs, keep XLA's
# defaults, because we have no measurements in favor of other values.
GPU_FLAGS = {
    # With this flag, GPUs exchange gradients while they compute other gradients. NVIDIA's images of JAX also set the
    # flag (docs.nvidia.com/jax-toolbox/environment-variables).
    'xla_gpu_enable_latency_hiding_scheduler': True,
    # A resumed run must give the same bits, so this flag excludes sums by atomic operations, whose order varies. With
    # the flag, cuDNN's attention uses its deterministic backward pass (openxla/xla, pull request 14125). Only scatters
    # whose indices may repeat become slow, and a step has none (model/lookup.py).
    'xla_gpu_exclude_nondeterministic_ops': True,
}
_GOOGLE = '0x1ae0'  # the PCI vendor id of TPUs, and of the disks and network cards of Google's virtual machines
_DISK_OR_NETWORK = ('0x01', '0x02')  # the prefixes of the PCI classes of disks and network cards
# Environment variables that libtpu and JAX set themselves, even on machines without TPUs.
_SET_BY_LIBRARIES = ('TPU_LIBRARY_PATH', 'TPU_SKIP_MDS_QUERY')


def leave_out_absent_tpus() -> None:
    """Restricts JAX to the CPU platform if libtpu is installed on a machine that has only CPUs.

    JAX starts libtpu even if it is installed only to compile for TPUs, and libtpu then prints six lines of errors. This
    function does nothing if a platform was chosen, or if there is any sign of a TPU, a GPU or a plug-in for another
    platform, so that JAX's messages about them stay visible. Call it before JAX computes anything.
    """
    if jax.config.jax_platforms is not None or not importlib.util.find_spec('libtpu'):
        return
    if not (may_have_tpu() or _may_have_nvidia_gpu() or _has_plugins()):
        jax.config.update('jax_platforms', 'cpu')


def unused_accelerator(used_platform: str) -> str:
    """Returns 'TPU' or 'GPU' if this machine seems to have one although JAX uses the platform 'cpu', else ''."""
    if used_platform != 'cpu':
        return ''
    return 'TPU' if may_have_tpu() else 'GPU' if _may_have_nvidia_gpu() else ''


def may_have_tpu() -> bool:
    """Returns whether this machine shows signs of a TPU: a PCI device, a device file or an environment variable."""
    names = os.environ.keys() - set(_SET_BY_LIBRARIES)
    has_variable = any(name.startswith(('TPU_', 'JAX_FORCE_TPU')) for name in names)
    has_file = bool(glob.glob('/dev/accel*') or set(glob.glob('/dev/vfio/*')) - {'/dev/vfio/vfio'})
    return has_variable or has_file or any(map(_may_be_tpu, glob.glob('/sys/bus/pci/devices/*/vendor')))


def _may_be_tpu(vendor_file: str) -> bool:
    """Returns whether a PCI device is Google's, and neither a disk nor a network card."""
    path = pathlib.Path(vendor_file)
    if path.read_text().strip() != _GOOGLE:
        return False
    class_file = path.with_name('class')
    return not (class_file.exists() and class_file.read_text().startswith(_DISK_OR_NETWORK))


def _may_have_nvidia_gpu() -> bool:
    """Returns whether a device file of NVIDIA's driver or of WSL exists."""
    return bool(glob.glob('/dev/nvidia*') or glob.glob('/dev/dxg'))


def _has_plugins() -> bool:
    """Returns whether JAX has plug-ins for platforms other than CPUs and TPUs, such as CUDA."""
    return bool(importlib.metadata.entry_points(group='jax_plugins') or importlib.util.find_spec('jax_plugins'))


def set_gpu_flags() -> None:
    """Adds the missing GPU_FLAGS to XLA_FLAGS. This has no effect after XLA has started."""
    flags = os.environ.get('XLA_FLAGS', '').split()
    names = {flag.lstrip('-').partition('=')[0] for flag in flags}
    flags += [f'--{name}={str(value).lower()}' for name, value in GPU_FLAGS.items() if name not in names]
    os.environ['XLA_FLAGS'] = ' '.join(flags)


def find_devices() -> list[jax.Device]:
    """Starts JAX and returns all devices.

    Raises:
      UserError: JAX cannot start, for example because another process uses the TPU.
    """
    leave_out_absent_tpus()
    try:
        return jax.devices()
    except (AssertionError, RuntimeError) as error:
        if jax.distributed.is_initialized():  # another process may be lost
            raise
        # JAX's assertion has no text, for example with JAX_PLATFORMS=cuda and no GPU.
        found = first_line(error) if str(error) else f'no platform of JAX_PLATFORMS={jax.config.jax_platforms}'
        fix = 'end the process that uses the devices, repair the driver, or choose others, such as JAX_PLATFORMS=cpu'
        raise UserError("JAX's devices", found, 'devices that JAX can use', fix) from None


def claim_devices() -> list[jax.Device]:
    """Prepares the process for its devices and returns all devices.

    The function enables the compile cache and, if JAX may use a GPU, sets GPU_FLAGS. Call it in the main thread before
    JAX computes anything.

    Raises:
      UserError: See `find_devices`. Or the devices belong to several processes of a TPU slice that are not connected.
        Each process would train separately and write to the same workdir.
    """
    # On a CPU, the process keeps freed memory. Only the heap of the main thread can keep large blocks, so asynchronous
    # dispatch, which computes in other threads on a CPU, is disabled.
    jax.config.update('jax_cpu_enable_async_dispatch', False)
    if _may_have_nvidia_gpu() and _has_plugins():
        set_gpu_flags()
    enable_compile_cache()
    devices = find_devices()
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        found = f'devices of {jax.process_count()} processes, but no connection to the other processes'
        fix = 'give --coordinator_address, --num_processes and --process_id, see docs/scaling.md'
        raise UserError('this process', found, 'a process that is connected to the others', fix)
    if devices[0].platform == 'cpu':
        keep_freed_memory()
    return devices


def device_memory(mesh: Mesh) -> int:
    """Returns the memory of each device of a mesh in bytes. CPU devices share the memory of the host."""
    device = mesh.local_devices[0]
    limit = (device.memory_stats() or {}).get('bytes_limit')
    return limit or host_memory() // len(mesh.local_devices)
