"""Streaming of standard input: lines, and batches of records that do not wait for further input."""

import contextlib
import io
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from bertjax.tasks.reading.texts import Blank, Line, stream_lines

_AHEAD = 4  # batches to read ahead during the computation
_GATHER = 0.02  # seconds to wait for further items of a batch


def standard_input(where: str) -> Iterator[Line]:
    """Yields the lines of standard input, see `stream_lines`; `where` is its name in messages."""
    return stream_lines(open_standard_input(), where)


def open_standard_input() -> io.BufferedReader:
    """Opens standard input as bytes."""
    # sys.stdin's buffer has a lock that Python acquires at exit, and a blocked reader thread would hold it forever.
    return open(sys.stdin.fileno(), 'rb', closefd=False)


def stream_batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yields batches of about `size` items, each as soon as no further item is waiting.

    A batch has at least one item that is not a `Blank`. An error of `items` is raised after all earlier items.
    """
    waiting: queue.Queue[Any] = queue.Queue(_AHEAD * size)
    end = object()

    def read() -> None:
        try:
            for item in items:
                waiting.put(item)
            waiting.put(end)
        except Exception as error:  # raised below, in the thread that computes
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()  # a daemon, because it may wait for input forever
    last: Any = None
    while last is not end:
        batch: list[Any] = []
        only_blank = True
        with contextlib.suppress(queue.Empty):
            while only_blank or len(batch) < size:
                last = waiting.get(timeout=None if only_blank else _GATHER)
                if last is end or isinstance(last, Exception):
                    break
                batch.append(last)
                only_blank = only_blank and isinstance(last, Blank)
        if not only_blank:
            yield batch
        if isinstance(last, Exception):
            raise last
