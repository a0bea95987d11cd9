"""A watchdog for hanging runs. It prints all stacks and ends the process, so that a scheduler can restart the run."""

import contextlib
import math
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from bertjax.errors import HungError
from bertjax.files.atomic import write_atomic
from bertjax.training.health.goodput_clock import DATA, KINDS, START, STEP, GoodputClock

HANG = 'hang.log'  # in a workdir; not .txt, which a glob for corpus files may match
LONG_FACTOR = 10  # the factor for other activities, which take longer than a step
# {kind: its limit as a multiple of config.hang_minutes}. START has no limit, because pairing a large corpus takes time.
LIMIT_FACTORS = {STEP: 1, DATA: 1, START: math.inf}
_WRITE_TIMEOUT = 10.0  # seconds to wait until the file is written, because the disk may hang


@contextlib.contextmanager
def watch_for_hangs(
    run_clock: GoodputClock, minutes: float, folder: pathlib.Path, leave: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """A context in which a thread ends the process with status 4 if the run makes no progress for too long.

    `minutes` is the limit during steps (see LIMIT_FACTORS), or 0 for no watchdog. `leave` ends the process.
    """
    if not minutes:
        yield
        return
    ended = threading.Event()
    limit = 60 * minutes
    tick = min(limit / 10, 1.0)

    def watch() -> None:
        idle, moves, before = 0.0, run_clock.moves, time.monotonic()
        while not ended.wait(tick):
            now = time.monotonic()
            # The time in which the process was suspended does not count, so at most two ticks are added.
            idle += min(now - before, 2 * tick)
            before = now
            if run_clock.moves != moves:
                idle, moves = 0.0, run_clock.moves
            elif idle > limit * LIMIT_FACTORS.get(run_clock.doing, LONG_FACTOR):
                _report(HungError(idle / 60, KINDS[run_clock.doing], str(folder / HANG)), folder)
                leave(HungError.exit_status)
                return

    thread = threading.Thread(target=watch, name='watchdog', daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(error: HungError, folder: pathlib.Path) -> None:
    lines = []
    for number, innermost in sys._current_frames().items():
        lines.append(f'Thread 0x{number:x} (most recent call first):')
        # `traceback.format_stack` would read the source files, and the disk may hang.
        for frame, line in traceback.walk_stack(innermost):
            lines.append(f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}')
    stacks = '\n'.join(lines)
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(f'{stacks}\n{error}', file=sys.stderr, flush=True)

    def write() -> None:
        with contextlib.suppress(Exception):  # stderr has the same text
            write_atomic(folder / HANG, f'{error}\n\n{stacks}')

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(_WRITE_TIMEOUT)
