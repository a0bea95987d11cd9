"""Memory-maps files, and explains SIGBUS.

The system sends this signal after a read of a mapped file that was truncated, or whose disk fails.
"""

import ctypes
import os
import signal

import numpy as np

from bertjax.errors import UserError

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handler = None  # the C library has a pointer to the handler, so Python must not free it
_sizes: dict[str, int] = {}  # {path of a mapped file: its size in bytes}


def map_array(path: str | os.PathLike, dtype: str | np.dtype) -> np.ndarray:
    """Memory-maps a file of numbers as a plain np.ndarray, because slicing an np.memmap is several times slower.

    Raises:
      UserError: The file no longer exists.
    """
    try:
        array = np.memmap(path, dtype, 'r').view(np.ndarray)
    except FileNotFoundError:
        fix = 'if the file is in the workdir, start the same command again to write the file anew; else restore it'
        raise UserError(str(path), 'no such file any more', 'a file that stays while it is used', fix) from None
    register_mapped(path, array.nbytes)
    return array


def register_mapped(path: str | os.PathLike, size: int) -> None:
    """Registers a mapped file of `size` bytes, so that `explain_bus_errors` can name it."""
    _sizes[os.path.abspath(path)] = size


def explain_bus_errors() -> None:
    """Installs a SIGBUS handler that prints the cause as a UserError and exits with the status of a UserError.

    The handler is installed with `signal` of the C library. Python would call a handler of `signal.signal` only after
    the current bytecode instruction, which never finishes after a SIGBUS.
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
    fix = 'if the file is in the workdir, remove its folder and start the same command again; else restore the file'
    for path, size in _sizes.items():
        if os.path.exists(path) and (now := os.path.getsize(path)) < size:
            return UserError(path, f'{now:,} bytes', f'{size:,} bytes, as when it was opened', fix)
    found, fix = 'a file that can no longer be read (SIGBUS)', 'check the disk and start the same command again'
    return UserError('the run', found, 'files that do not change during the run', fix)
