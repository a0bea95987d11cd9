"""Measures the time of each activity of the training thread, for goodput, reports of slow steps and the watchdog.

The clock writes `WORKDIR/time.jsonl`. A restarted run appends to this file, so that `goodput.py` can compute the time
that a kill has cost.
"""

import collections
import contextlib
import contextvars
import pathlib
import statistics
import sys
import time
from collections.abc import Hashable, Iterator

import psutil

from bertjax.writers.jsonl import JsonLines
from bertjax.writers.writer import Writers

TIMES = 'time.jsonl'  # in a workdir
START, RESTORE, COMPILE, DATA = 'start', 'restore', 'compile', 'data'
STEP, EVALUATION, SAVE = 'step', 'evaluation', 'save'
# {kind of activity: its description in messages}.
KINDS = {
    STEP: 'in the step itself', START: 'getting ready', RESTORE: 'restoring', COMPILE: 'compiling',
    DATA: 'waiting for data', EVALUATION: 'evaluating', SAVE: 'saving',
}  # fmt: skip
SLOW = 5  # a slow step takes at least this many times the median
_REPORTED = (COMPILE, EVALUATION)  # kinds with separate lines on the console
_MIN_REPORTED = 0.5  # seconds; slow steps below this limit get a row in the log, but no line on the console
_ROW_INTERVAL = 10.0  # seconds; a step writes a row if the last row is older, and a kill loses the times since that row
_MIN_STEPS, _MAX_STEPS = 10, 100  # the minimum and the maximum number of steps of one shape for a median

# See `recorded_until`; None for the start of the process. Each thread has its own value.
_recorded_until: contextvars.ContextVar[float | None] = contextvars.ContextVar('recorded_until', default=None)
# The workdir of the previous training, whose record a training in the same workdir continues.
_recorded_folder: contextvars.ContextVar[pathlib.Path | None] = contextvars.ContextVar('recorded_folder', default=None)


def recorded_until() -> float:
    """Returns the value of `time.perf_counter()` at the start of the record of the current training.

    The record starts at the end of the previous training or at the last call of `begin_recording`, or else at the start
    of the process.
    """
    if (recorded := _recorded_until.get()) is not None:
        return recorded
    return time.perf_counter() - max(time.time() - psutil.Process().create_time(), 0.0)


def begin_recording() -> None:
    """Begins the record of the next training now, for a program that did other things before."""
    _recorded_until.set(time.perf_counter())
    _recorded_folder.set(None)


class GoodputClock:
    """Measures the wall time of each activity of a run. The current activity is one of KINDS, at first START.

    An ordinary row of time.jsonl has the `seconds` of each kind from step `after` to `step`. The first row of a process
    also has `began`, the start of the record in seconds since 1970. Each slow step has a separate row with its
    duration `slow`, its `seconds` by kind, and the `median` duration of earlier steps of the same shape. If a write
    fails, the clock warns and writes no more rows.

    Attributes:
      doing: The kind of the current activity.
      moves: A counter that increases whenever the training thread uses the clock, as a sign of progress.
    """

    def __init__(self, folder: pathlib.Path, step: int):
        self._folder, self._log = folder, Writers([JsonLines(folder / TIMES)])
        self._log.truncate_after(sys.maxsize)  # removes only damaged lines at the end
        self._since = self._row_since = recorded_until()
        began = time.time() - (time.perf_counter() - self._since)
        self._began = None if _recorded_folder.get() == folder else began
        self.doing, self.moves = START, 0
        # The seconds of each kind since the last row, the last step and the last lap.
        self._row_seconds, self._step_seconds, self._lap_seconds = (collections.Counter() for _ in range(3))
        self._step = self._after = step
        self._trains = False
        self._recent: dict[Hashable, collections.deque[float]] = {}

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Counts the time of the context as `kind`, then returns to the previous kind."""
        before = self.doing
        self._switch_to(kind)
        try:
            yield
        finally:
            self._switch_to(before)

    def prepare(self) -> None:
        """Counts the time from now as START. Call this before the preparation of a phase."""
        self._switch_to(START)

    def begin(self) -> None:
        """Counts the time from now as STEP."""
        self._switch_to(STEP)
        self._trains, self._step_seconds, self._lap_seconds = True, collections.Counter(), collections.Counter()

    def lap(self) -> dict[str, float]:
        """Returns {kind: seconds} since the last call of `begin` or `lap`."""
        self._switch_to(self.doing)
        seconds, self._lap_seconds = self._lap_seconds, collections.Counter()
        return seconds

    def step(self, step: int, shape: Hashable, *, saving: bool = False) -> str | None:
        """Records a finished step, which is compared with earlier steps of the same `shape`.

        `saving` is whether a checkpoint is being written at the same time.

        Returns:
          A line about the step if it took at least 0.5 s and at least SLOW times the median, else None. Compilation and
          evaluation do not count, because they have separate lines.
        """
        self._switch_to(STEP)
        seconds, self._step_seconds, self._step = self._step_seconds, collections.Counter(), step
        line = self._check_duration(seconds, shape, saving)
        if self._since - self._row_since > _ROW_INTERVAL:
            self.write()
        return line

    def _check_duration(self, seconds: dict[str, float], shape: Hashable, saving: bool) -> str | None:
        duration, recent = sum(seconds.values()), self._recent.setdefault(shape, collections.deque(maxlen=_MAX_STEPS))
        median = statistics.median(recent) if len(recent) >= _MIN_STEPS else 0.0
        recent.append(duration)
        if not 0 < SLOW * median <= duration:
            return None
        spent = {'seconds': {kind: round(each, 4) for kind, each in seconds.items()}}
        spent |= {'beside': 'checkpoint'} if saving else {}
        self._log.write({'step': self._step, 'slow': round(duration, 4), 'median': round(median, 4), **spent})
        unreported = sum(each for kind, each in seconds.items() if kind not in _REPORTED)
        if unreported < max(SLOW * median, _MIN_REPORTED):
            return None
        kind = max((kind for kind in seconds if kind not in _REPORTED), key=seconds.__getitem__)
        cause = f'{seconds[kind]:.1f} s {KINDS[kind]}' + (', while a checkpoint was being written' if saving else '')
        return f'step {self._step} took {duration:.1f} s, {duration / median:.0f} times the median: {cause}'

    def write(self) -> None:
        """Writes a row with the time since the last row."""
        self._switch_to(self.doing)
        row = {'step': self._step, 'after': self._after, **({'began': self._began} if self._began is not None else {})}
        self._log.write(row | {'seconds': {kind: round(each, 4) for kind, each in self._row_seconds.items()}})
        self._row_since, self._after, self._began = self._since, self._step, None
        self._row_seconds = collections.Counter()

    def close(self) -> None:
        """Closes the log. Writes the last row if `begin` was called."""
        if self._trains:
            self.write()
        self._log.close()
        _recorded_until.set(self._since)
        if self._began is None:
            _recorded_folder.set(self._folder)

    def _switch_to(self, kind: str) -> None:
        now = time.perf_counter()
        for seconds in (self._row_seconds, self._step_seconds, self._lap_seconds):
            seconds[self.doing] += now - self._since
        self._since, self.doing, self.moves = now, kind, self.moves + 1
