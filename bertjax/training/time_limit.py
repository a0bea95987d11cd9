"""A limit on the wall time of a training, summed over all processes of the run."""

import datetime
import math
import pathlib
import time

from bertjax.errors import StoppedError
from bertjax.training.health.goodput import LOST, read_goodput
from bertjax.training.health.goodput_clock import recorded_until


class TimeLimit:
    """The wall time budget of a run. This limit can end one phase, but not the run.

    The time counts from `recorded_until`, and includes the preparation of the text. It excludes the time between a kill
    and the next start, and steps that a kill has lost.

    Args:
      seconds: The limit for the whole run.
      phase: The index of the phase that the limit can end; -1 for none.
      ends: The elapsed time of the run, in seconds, at which this phase ends.
    """

    def __init__(self, seconds: float, *, phase: int = -1, ends: float = math.inf):
        self.seconds, self._phase, self._ends = seconds, phase, ends
        self._spent, self._since = 0.0, time.perf_counter()

    def begin(self, folder: pathlib.Path, step: int) -> None:
        """Reads the time that the run in a workdir took up to `step`, from which the run now continues.

        A run that starts at step 0 does not count the time of earlier processes.
        """
        goodput = read_goodput(folder, until=step)
        self._spent = goodput.total - goodput.seconds.get(LOST, 0.0) if goodput and step else 0.0
        self._since = recorded_until()
        if step == 0 and self.elapsed > self.seconds / 2:
            print(
                f'warning: {self.elapsed:.0f} s of the {self.seconds:.0f} s of config.budget are used before the first '
                'step; in a new workdir, first run the command with --config.run=corpus, whose time does not count'
            )

    @property
    def elapsed(self) -> float:
        """The time of the run until now, in seconds."""
        return self._spent + time.perf_counter() - self._since

    def ends_phase(self, number: int) -> bool:
        """Returns whether the phase with index `number` must end now."""
        return number == self._phase and self.elapsed >= self._ends

    def describe(self) -> str:
        """Describes the share of the limit that has passed, and the local time at which the limit ends."""
        left = datetime.timedelta(seconds=max(self.seconds - self.elapsed, 0.0))
        time_format = '%H:%M' if left < datetime.timedelta(hours=20) else '%d %b %H:%M'
        share, end = min(self.elapsed / self.seconds, 1), datetime.datetime.now() + left
        return f'{share:.0%} of the budget  ends {end.strftime(time_format)}'


class PhaseTimeError(StoppedError):
    """The time of a phase is used up, and its last state is saved."""

    def __init__(self, step: int):
        super().__init__(f'the time of a phase ended at step {step}')
        self.step = step
