"""What the C library does with memory that is freed, and what the user is told when there is too little of it."""

import ctypes
import errno
import re
import resource
import sys

from absl import logging

from bertjax.cores import available_cores
from bertjax.errors import UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h
_LEAST = 128 * 1024  # bytes, glibc's own before it adapts
# Bytes of address space. A run of the smallest model takes 1.9 GB on two cores, mostly for libraries and for threads.
_PROGRAM, _A_CORE = 2 << 30, 128 << 20
# In words of XLA, C++ and Python.
_EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED:.*(memory|allocat)|std::bad_alloc|can't start new thread", re.DOTALL)
_FIX = 'lower config.batch_size, raise config.accumulate, or give it more memory; the same command continues'


def give_back_freed() -> None:
    """Has arrays go back to the system as soon as they are freed.

    glibc raises its threshold to the size of what was freed, up to 32 MB, and keeps what lies below: arrays that are
    read and converted one by one would leave gaps as large as the model. Not for training, whose buffers come again
    with every step. Does nothing where the C library is another one.
    """
    if sys.platform != 'linux':
        return
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LEAST)
        mallopt(_TRIM_THRESHOLD, _LEAST)


def refused(error: BaseException) -> UserError | None:
    """What the user is told of an exception for want of memory, of the host or of a device; None for any other."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if full or isinstance(error, MemoryError) or _EXHAUSTED.search(str(error)):
            said = (str(error).strip() or 'Out of memory').splitlines()[0].removeprefix('RESOURCE_EXHAUSTED: ')
            return _no_address_space() or UserError('memory', said, 'as much as the run needs', _FIX)
        error = error.__cause__
    return None


def _limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _no_address_space() -> UserError | None:
    limit = _limit()
    if limit is None:
        return None
    fix = f'run this first: ulimit -v unlimited; or {_FIX}'
    return UserError('ulimit -v', f'{limit:,} bytes of address space, used up', 'more', fix)


def check_address_space() -> None:
    """Refuses to compute in an address space (`ulimit -v`) that is too small for any model, and warns of a limited one.

    Large arrays that do not fit raise; but C++ that finds no room for a thread or a small object ends the process.

    Raises:
      UserError: it is too small.
    """
    limit, least = _limit(), _PROGRAM + _A_CORE * available_cores()
    if limit is None:
        return
    if limit < least:
        fix = 'run this first: ulimit -v unlimited'
        raise UserError('ulimit -v', f'{limit:,} bytes of address space allowed', f'at least {least:,}', fix)
    logging.warning(
        'ulimit -v allows %s bytes of address space: where native code finds no more it aborts (status 134 or 139); '
        'ulimit -v unlimited',
        f'{limit:,}',
    )
