"""What the C library does with memory that is freed."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h
_LEAST = 128 * 1024  # bytes, glibc's own before it adapts


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
