"""The memory of the host: its size, the use of freed memory, and errors about a lack of memory."""

import contextlib
import ctypes
import errno
import re
import resource
import sys
from collections.abc import Iterator, Mapping

import psutil
from absl import logging

from bertjax.cores import cgroup_limits, schedulable_cores
from bertjax.errors import UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # Parameters of mallopt in glibc's malloc.h.
# glibc's initial values: both thresholds, in bytes, and the number of blocks. A threshold that is set no longer grows.
_THRESHOLD, _MAX_BLOCKS = 128 * 1024, 65536
# The required address space in bytes: a constant, and a number per core. A run of the smallest model takes 1.9 GB on
# two cores, mostly for libraries and threads.
_BASE_BYTES, _BYTES_PER_CORE = 2 << 30, 128 << 20
# The messages of XLA, C++ and Python about a lack of memory.
_EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED:.*(memory|allocat)|std::bad_alloc|can't start new thread", re.DOTALL)
_FIX = 'lower batch_size or eval_batch_size, raise grad_accum_steps, or give the run more memory; then run it again'

_must_return = False  # whether the process is in the context `return_freed_memory`


def host_memory() -> int:
    """Returns the memory of this machine in bytes, limited by the memory of a container or a Slurm job."""
    limits = [*cgroup_limits('memory', 'memory.max'), *cgroup_limits('memory', 'memory.limit_in_bytes')]
    return min([psutil.virtual_memory().total, *(limit for (limit,) in limits)])


def keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed arrays for later arrays, except in the context `return_freed_memory`.

    On a CPU, XLA allocates the temporary arrays anew in every step. By default, glibc returns freed blocks above 32 MiB
    to the kernel, which then has to clear their pages in every step. This slows down small models.
    """
    if not _must_return:
        _set_malloc({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})


@contextlib.contextmanager
def return_freed_memory() -> Iterator[None]:
    """A context in which glibc returns the memory of freed arrays to the system immediately.

    By default, glibc keeps freed blocks of up to 32 MB. If a model is converted array by array, these blocks can
    take as much memory as the model.
    """
    global _must_return
    _set_malloc({_MMAP_MAX: _MAX_BLOCKS, _MMAP_THRESHOLD: _THRESHOLD, _TRIM_THRESHOLD: _THRESHOLD})
    _must_return = True
    try:
        yield
    finally:
        _must_return = False


def _set_malloc(values: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None  # musl has none
    for parameter, value in values.items() if mallopt else ():
        mallopt(parameter, value)


def out_of_memory_error(error: BaseException) -> UserError | None:
    """Converts an out-of-memory exception of the host or a device to a UserError; returns None for other exceptions."""
    while error is not None:
        no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if no_memory or isinstance(error, MemoryError) or _EXHAUSTED.search(str(error)):
            message = (str(error).strip() or 'Out of memory').splitlines()[0].removeprefix('RESOURCE_EXHAUSTED: ')
            limit = _limit()
            fix = f'{_FIX}; ulimit -v allows {limit:,} bytes: ulimit -v unlimited lifts this limit' if limit else _FIX
            return UserError('memory', message, 'enough memory for the run', fix)
        error = error.__cause__
    return None


def _limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space() -> None:
    """Checks that the address space (`ulimit -v`) is enough for the smallest model, and warns if it is limited.

    The check is needed because native code aborts the process if it cannot allocate a thread or a small object.

    Raises:
      UserError: The address space is too small.
    """
    limit, minimum = _limit(), _BASE_BYTES + _BYTES_PER_CORE * schedulable_cores()
    if limit is None:
        return
    if limit < minimum:
        fix = 'run this first: ulimit -v unlimited'
        raise UserError('ulimit -v', f'{limit:,} bytes of address space allowed', f'at least {minimum:,}', fix)
    logging.warning(
        'ulimit -v allows %s bytes of address space; if they are used up, native code may abort (status 134 or 139); '
        'run this first: ulimit -v unlimited',
        f'{limit:,}',
    )
