"""What the main thread of a training is at in each moment: for goodput, for steps that are slow, for the watchdog.

`WORKDIR/time.jsonl` is the one file with times: it is appended to by every process of a run and never cut back, so that
what a kill cost can be told. `goodput.py` reads it.
"""

import collections
import contextlib
import pathlib
import statistics
import sys
import time
from collections.abc import Hashable, Iterator

import psutil

from bertjax.writers.jsonl import JsonLines
from bertjax.writers.writer import Writers

TIMES = 'time.jsonl'  # of a workdir
START, RESTORE, COMPILE, DATA = 'start', 'restore', 'compile', 'data'
STEP, EVALUATION, SAVE = 'step', 'evaluation', 'save'
# What each is called in a sentence.
KINDS = {
    STEP: 'in the step itself', START: 'getting ready', RESTORE: 'restoring', COMPILE: 'compiling',
    DATA: 'waiting for data', EVALUATION: 'evaluating', SAVE: 'saving',
}  # fmt: skip
SLOW = 5  # times the median
_TOLD = (COMPILE, EVALUATION)  # have lines of their own
_NOTICED = 0.5  # seconds: a slow step of less is a row, and no line
_EVERY = 10.0  # seconds between rows: what a kill leaves untold at most
_FEW, _REMEMBERED = 10, 100  # steps of one shape before their median counts, and that it is taken of

_told_until: float | None = None  # of this process, in an earlier training of it


class GoodputClock:
    """Where a run's wall time goes; its main thread is always at one of KINDS, at first at START.

    A row of time.jsonl has the `seconds` of each kind from step `after` on to `step`; the first of a process also
    `began`, when the process did (seconds since 1970). A row with `slow` is about one step: its seconds by kind, and
    the `median` of the steps before it. A log that cannot be written is dropped with a warning.

    Args:
      folder: where the log goes.
      step: at which the run stands.

    Attributes:
      doing: the kind.
      moves: grows with every step and every change of kind.
    """

    def __init__(self, folder: pathlib.Path, step: int):
        self._log = Writers([JsonLines(folder / TIMES)])
        self._log.truncate_after(sys.maxsize)  # nothing but a line that a kill has cut off
        now = time.perf_counter()
        running = max(time.time() - psutil.Process().create_time(), 0.0)
        self._since = self._row_since = now - running if _told_until is None else _told_until
        self._began: float | None = time.time() - (now - self._since)
        self.doing, self.moves = START, 0
        self._of_row: dict[str, float] = {}
        self._of_step: dict[str, float] = {}
        self._step = self._after = step
        self._trains = False
        self._usual: dict[Hashable, collections.deque[float]] = {}

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """The thread is at `kind` as long as the context lasts, then again at what it was at before."""
        before = self.doing
        self._turn_to(kind)
        try:
            yield
        finally:
            self._turn_to(before)

    def prepare(self) -> None:
        """What comes now is no step yet: another phase begins."""
        self._turn_to(START)

    def begin(self) -> None:
        """What comes now are steps, where no context says otherwise."""
        self._turn_to(STEP)
        self._trains, self._of_step = True, {}

    def step(self, step: int, shape: Hashable, *, saving: bool = False) -> str | None:
        """One more step is done.

        Args:
          step: its number.
          shape: of its batch: steps are compared with others like them.
          saving: whether a checkpoint is being written beside it.

        Returns:
          A line about it where it took SLOW times the median and nothing else has said why.
        """
        self._turn_to(STEP)
        seconds, self._of_step, self._step = self._of_step, {}, step
        line = self._judge(seconds, shape, saving)
        if self._since - self._row_since > _EVERY:
            self.write()
        return line

    def _judge(self, seconds: dict[str, float], shape: Hashable, saving: bool) -> str | None:
        took, usual = sum(seconds.values()), self._usual.setdefault(shape, collections.deque(maxlen=_REMEMBERED))
        median = statistics.median(usual) if len(usual) >= _FEW else 0.0
        usual.append(took)
        if not 0 < SLOW * median <= took:
            return None
        spent = {'seconds': {kind: round(each, 4) for kind, each in seconds.items()}}
        spent |= {'beside': 'checkpoint'} if saving else {}
        self._log.write({'step': self._step, 'slow': round(took, 4), 'median': round(median, 4), **spent})
        untold = sum(each for kind, each in seconds.items() if kind not in _TOLD)
        if untold < max(SLOW * median, _NOTICED):
            return None
        kind = max((kind for kind in seconds if kind not in _TOLD), key=seconds.__getitem__)
        while_ = ', while a checkpoint was being written' if saving else ''
        return (
            f'step {self._step} took {took:.1f} s, {took / median:.0f} times the median: '
            f'{seconds[kind]:.1f} s {KINDS[kind]}{while_}'
        )

    def write(self) -> None:
        """Writes what there is to the log."""
        self._turn_to(self.doing)
        row = {'step': self._step, 'after': self._after, **({'began': self._began} if self._began is not None else {})}
        self._log.write(row | {'seconds': {kind: round(each, 4) for kind, each in self._of_row.items()}})
        self._row_since, self._after, self._of_row, self._began = self._since, self._step, {}, None

    def close(self) -> None:
        """Writes the last row, unless there was nothing to train."""
        global _told_until
        if self._trains:
            self.write()
        self._log.close()
        _told_until = self._since

    def _turn_to(self, kind: str) -> None:
        now = time.perf_counter()
        for seconds in (self._of_row, self._of_step):
            seconds[self.doing] = seconds.get(self.doing, 0.0) + now - self._since
        self._since, self.doing, self.moves = now, kind, self.moves + 1
