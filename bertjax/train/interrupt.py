"""SIGTERM and Ctrl-C: the first asks to stop, the second is told what is waited for, the third ends the process."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    """While entered, the first SIGTERM or SIGINT is noted, and a third ends the process: status 128 + its number.

    They are answered by a thread of their own, also while the main thread is in compiled code or waits for a disk.

    Attributes:
      doing: what the run is at, for the answer to the second.
    """

    def __init__(self):
        self.doing = 'the run is being prepared'
        self._requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> 'Interrupt':
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        self._answering = threading.Thread(target=self._answer, name='signals', daemon=True)
        self._answering.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._writer)  # which ends the thread
        self._answering.join()
        os.close(self._reader)

    def _note(self, number: int, frame: object) -> None:
        del number, frame
        self._requested = True

    def _answer(self) -> None:
        count = 0
        while byte := os.read(self._reader, 1):  # the number of a signal, written the moment that it came
            if byte[0] not in SIGNALS:
                continue
            count += 1
            self._requested = True
            if count == 1:
                _say('asked to stop: saving at the next step …')
            elif count == 2:
                _say(f'asked again: {self.doing}; a third signal ends it at once, and what is not saved is lost')
            else:
                os._exit(128 + byte[0])

    @contextlib.contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """The run is at `doing` as long as the context lasts, then again at what it was at before."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing = before

    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._requested


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is there to read it
        print(text, file=sys.stderr, flush=True)
