"""Notices that a training hangs: says where each thread stands, and ends the process for a scheduler to restart."""

import contextlib
import faulthandler
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from bertjax.errors import HungError
from bertjax.files.atomic import write_atomic
from bertjax.train.goodput_clock import COMPILE, DATA, EVALUATION, KINDS, RESTORE, SAVE, STEP, GoodputClock

HANG = 'hang.txt'  # of a workdir
LONGER = 10  # times as long may take what is no step
# How many times config.hang_minutes each kind may take; getting ready, perhaps the pairs of a large corpus, any time.
ALLOWED = {STEP: 1, DATA: 1, COMPILE: LONGER, EVALUATION: LONGER, SAVE: LONGER, RESTORE: LONGER}
_WRITING = 10.0  # seconds for the file: the disk may be what hangs


@contextlib.contextmanager
def watch_for_hangs(
    sheet: GoodputClock, minutes: float, folder: pathlib.Path, leave: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """While entered, a thread ends the process with status 4 when the run has not moved for too long.

    Args:
      sheet: of the run; it moves with every step and with everything that begins or ends.
      minutes: without a move during steps, see ALLOWED; 0 watches nothing.
      folder: the workdir, where HANG goes.
      leave: ends the process.
    """
    if not minutes:
        yield
        return
    over = threading.Event()
    watched = (sheet, 60 * minutes, folder, over, leave)
    thread = threading.Thread(target=_watch, args=watched, name='watchdog', daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(
    sheet: GoodputClock, limit: float, folder: pathlib.Path, over: threading.Event, leave: Callable[[int], None]
) -> None:
    tick = min(limit / 10, 1.0)
    still, moves, before = 0.0, sheet.moves, time.monotonic()
    while not over.wait(tick):
        now = time.monotonic()
        # A process that was stopped for an hour has not hung for one.
        still += min(now - before, 2 * tick)
        before = now
        if sheet.moves != moves:
            still, moves = 0.0, sheet.moves
        elif still > limit * ALLOWED.get(sheet.doing, float('inf')):
            _report(HungError(still / 60, KINDS[sheet.doing], str(folder / HANG)), folder)
            leave(HungError.exit_status)
            return


def _report(error: HungError, folder: pathlib.Path) -> None:
    stacks = _stacks()
    with contextlib.suppress(OSError, ValueError):  # nobody is there to read it
        print(f'{stacks}\n{error}', file=sys.stderr, flush=True)
    writing = threading.Thread(target=_write, args=(folder / HANG, f'{error}\n\n{stacks}'), daemon=True)
    writing.start()
    writing.join(_WRITING)


def _stacks() -> str:
    """Where every thread stands, the innermost call first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode('utf-8', 'replace')


def _write(path: pathlib.Path, text: str) -> None:
    with contextlib.suppress(Exception):  # it stands on stderr
        write_atomic(path, text)
