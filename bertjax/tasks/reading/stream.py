"""Standard input as it comes: lines, and batches of what they hold, each as soon as no more is waiting."""

import contextlib
import io
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from bertjax.tasks.reading.texts import Blank, Line, stream_lines

_AHEAD = 4  # batches that are read while others are computed
_GATHER = 0.02  # seconds in which what comes together goes into one batch


def standard_input(where: str) -> Iterator[Line]:
    """Its lines, see `stream_lines`; `where` is its name in messages."""
    return stream_lines(open_standard_input(), where)


def open_standard_input() -> io.BufferedReader:
    """The bytes of standard input."""
    # Not sys.stdin's own buffer, whose lock Python wants at its end: a thread may hold it then, and for ever.
    return open(sys.stdin.fileno(), 'rb', closefd=False)


def as_they_come(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Batches of about `size` items, with a record at least, each as soon as no more are waiting.

    An error of `items` is raised behind all that came before it.
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

    threading.Thread(target=read, daemon=True).start()  # may wait for input for ever
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
