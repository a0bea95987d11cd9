"""Files that are memory-mapped, and what becomes of a process when one of them is cut while it is read.

A truncated file or a failing disk is no exception there but a signal, SIGBUS, that ends a process without a word.
"""

import ctypes
import os
import signal

import numpy as np

from bertjax.errors import UserError

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handler = None  # which C calls, and Python must not free
_sizes: dict[str, int] = {}  # in bytes, of what this process has mapped


def map_array(path: str | os.PathLike, dtype: str | np.dtype) -> np.ndarray:
    """A file of numbers, read where it is looked at. As a plain array: slices of np.memmap are several times slower.

    Raises:
      UserError: the file is gone.
    """
    try:
        array = np.memmap(path, dtype, 'r').view(np.ndarray)
    except FileNotFoundError:
        fix = 'start the same command again: what it needs and does not find, it makes'
        raise UserError(str(path), 'no such file any more', 'a file that stays while it is used', fix) from None
    note_mapped(path, array.nbytes)
    return array


def note_mapped(path: str | os.PathLike, size: int) -> None:
    """Notes that a file is mapped by other means, up to `size` bytes."""
    _sizes[os.path.abspath(path)] = size


def explain_bus_errors() -> None:
    """Has a SIGBUS print which file was cut, as a user's mistake, and end this process with that status.

    A handler of Python's own would never run: the thread stays at the instruction that cannot read.
    """
    global _handler

    def call(number: int) -> None:
        del number
        try:
            os.write(2, f'error: {_bus_error()}\n'.encode())
        finally:
            os._exit(UserError.exit_status)

    _handler = _HANDLER(call)
    ctypes.CDLL(None).signal(signal.SIGBUS, _handler)


def _bus_error() -> UserError:
    fix = 'remove its folder and start the same command again: it makes it anew'
    for path, size in _sizes.items():
        if os.path.exists(path) and (now := os.path.getsize(path)) < size:
            return UserError(path, f'{now:,} bytes', f'{size:,}: it was cut while it was read', fix)
    folder = os.path.dirname(next(iter(_sizes), os.path.abspath(os.curdir)))
    return UserError(folder, 'a file that can no longer be read (SIGBUS)', 'files that stay', f'check the disk; {fix}')
