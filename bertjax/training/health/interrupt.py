"""SIGTERM and Ctrl-C: the first signal requests a stop, the second prints the activity, the third ends the process.

If Python code started the training (`bertjax.train`), the third signal raises KeyboardInterrupt in that code instead.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from bertjax.training.caller import CALLER

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST = 3  # this many signals end a training immediately


class Interrupt:
    """A context that records SIGTERM and SIGINT.

    If the third signal ends the process, the exit status is 128 + the number of the signal. A separate thread answers
    signals, even while the main thread runs compiled code or waits for a disk. Outside the main thread, the context
    records nothing, because only the main thread can set signal handlers. Within the context of another `Interrupt`,
    such as that of a benchmark, `__enter__` returns the other `Interrupt`.

    Attributes:
      doing: A description of the current activity, for the answer to the second signal.
    """

    def __init__(self):
        self.doing = 'the run is being prepared'
        self._requested = False
        # If several equal signals arrive during a C call, Python calls `_note` once, so `_answer` counts them too.
        self._noted = self._arrived = 0
        self._ends_process = CALLER.get().ends_process
        self._handles_signals = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> 'Interrupt':
        if not self._handles_signals:
            return self
        outer = getattr(signal.getsignal(signal.SIGTERM), '__self__', None)
        if isinstance(outer, Interrupt):
            self._handles_signals = False
            return outer
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        self._answering = threading.Thread(target=self._answer, name='signals', daemon=True)
        self._answering.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._handles_signals:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._writer)  # ends the thread
        self._answering.join()
        os.close(self._reader)

    def _note(self, number: int, frame: object) -> None:
        del number, frame
        self._requested = True
        self._noted += 1
        if max(self._noted, self._arrived) >= _LAST and not self._ends_process:
            raise KeyboardInterrupt

    def _answer(self) -> None:
        count = 0
        end = 'ends the process' if self._ends_process else 'interrupts the call'
        while byte := os.read(self._reader, 1):  # Python writes the number of each arriving signal to the pipe
            if byte[0] not in SIGNALS:
                continue
            self._arrived = count = count + 1
            self._requested = True
            if count == 1:
                _print('stop requested: stopping as soon as the work is saved …')
            elif count < _LAST:
                _print(f'stop requested again: {self.doing}; a third signal {end} and loses unsaved steps')
            elif self._ends_process:
                os._exit(128 + byte[0])

    @contextlib.contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Sets `doing` for the duration of the context."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before

    def requested(self) -> bool:
        """Returns whether a signal has arrived."""
        return self._requested


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(text, file=sys.stderr, flush=True)
