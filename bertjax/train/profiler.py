"""config.profile: a trace of some steps, by jax.profiler, for xprof, TensorBoard or Perfetto."""

import contextlib
import pathlib
from collections.abc import Callable

import jax
from absl import logging

from bertjax.errors import UserError
from bertjax.parallel.distributed import is_primary

PROFILE = 'profile'  # of a workdir


def profiled_steps(profile: str) -> range:
    """'100:105' -> the steps 100 to 104; '' -> none.

    Raises:
      UserError: a first step below 1, or an end that is not above it.
    """
    if not profile:
        return range(0)
    first, end = map(int, profile.split(':'))
    if not 1 <= first < end:
        fix = 'for example --config.profile=100:105, the steps 100 to 104'
        raise UserError('config.profile', repr(profile), 'FIRST:END, from 1 on and with a step between them', fix)
    return range(first, end)


class Profiler:
    """Traces steps into WORKDIR/profile, once: where there is a trace already, none is made.

    A trace that cannot be made is told, and the training goes on.

    Args:
      folder: the workdir.
      steps: see `profiled_steps`.
      log: takes a line.
    """

    def __init__(self, folder: pathlib.Path, steps: range, log: Callable[[str], None]):
        self._folder, self._steps, self._log = folder / PROFILE, steps if is_primary() else range(0), log
        self._traces = False

    def during(self, step: int, drain: Callable[[], None]) -> contextlib.AbstractContextManager:
        """The context of a step; `drain` waits until those before it are done."""
        if step not in self._steps:
            return contextlib.nullcontext()
        if not self._traces:
            drain()
            self._start()
        return jax.profiler.StepTraceAnnotation('train', step_num=step)

    def after(self, step: int, drain: Callable[[], None]) -> None:
        """Ends the trace behind its last step."""
        if self._traces and step == self._steps[-1]:
            drain()
            self.close()

    def close(self) -> None:
        """Ends a trace under way."""
        if not self._traces:
            return
        self._traces = False
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # of whatever kind: a trace is no reason to stop
            logging.warning('the trace of config.profile failed: %s', error)
            return
        self._log(f'traced steps {self._steps[0]} to {self._steps[-1]}: xprof --logdir={self._folder}')

    def _start(self) -> None:
        if self._folder.exists():
            self._log(f'{self._folder} is there already: these steps are not traced; remove it to have them traced')
            self._steps = range(0)
            return
        try:
            jax.profiler.start_trace(self._folder)
            self._traces = True
        except Exception as error:  # as above: another trace may be under way
            logging.warning('no trace for config.profile: %s', error)
            self._steps = range(0)
