"""Reads batches from standard input. A batch is smaller if further input is late."""

import contextlib
import io
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from bertjax.tasks.reading.texts import Blank

_PREFETCH_BATCHES = 4  # the maximum number of batches to read in advance
_WAIT = 0.02  # the seconds to wait for the next item before a smaller batch is yielded


def open_standard_input() -> io.BufferedReader:
    """Opens standard input in binary mode."""
    # With sys.stdin, Python could abort at exit, because a thread that waits for input holds the lock of the buffer.
    return open(sys.stdin.fileno(), 'rb', closefd=False)


def stream_batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yields batches of `size` items, or of fewer if the next item is not available within 20 ms.

    A batch grows, even beyond `size` items, until it has an item that is not a `Blank`. Only the last batch may
    consist of `Blank` items only. An exception from `items` is raised after all earlier items are yielded.
    """
    waiting: queue.Queue[Any] = queue.Queue(_PREFETCH_BATCHES * size)
    end = object()

    def read() -> None:
        try:
            for item in items:
                waiting.put(item)
            waiting.put(end)
        except Exception as error:  # raised again below, in the consumer's thread
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()  # a daemon thread, because it may wait for input forever
    last: Any = None
    while last is not end:
        batch: list[Any] = []
        only_blank = True
        with contextlib.suppress(queue.Empty):
            while only_blank or len(batch) < size:
                last = waiting.get(timeout=None if only_blank else _WAIT)
                if last is end or isinstance(last, Exception):
                    break
                batch.append(last)
                only_blank = only_blank and isinstance(last, Blank)
        if batch:
            yield batch
        if isinstance(last, Exception):
            raise last
