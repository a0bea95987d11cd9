"""SIGTERM and Ctrl-C set a flag that the loop checks after each step."""

import signal
import sys


class Interrupt:
    """While entered, the first SIGTERM or SIGINT is noted; a second SIGINT ends the process as usual."""

    def __init__(self):
        self._requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> 'Interrupt':
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        del frame
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._requested = True
        print('asked to stop: saving at the next step …', file=sys.stderr, flush=True)

    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._requested
