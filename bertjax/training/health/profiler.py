"""Profiling of some steps (config.profile) by jax.profiler, for xprof, TensorBoard or Perfetto."""

import contextlib
import pathlib
from collections.abc import Callable

import jax
from absl import logging

from bertjax.errors import UserError
from bertjax.parallel.distributed import is_primary

PROFILE = 'profile'  # the folder of traces in a workdir

# Traces do not record calls of Python functions. With these calls, about one trace in 150 ends in a segmentation fault
# if the run also writes checkpoints (JAX 0.10.2, Python 3.11, CPU).
_OPTIONS = jax.profiler.ProfileOptions()
_OPTIONS.python_tracer_level = 0


def profiled_steps(profile: str, total: int, run: str = 'the run') -> range:
    """Returns the steps in config.profile: the steps 100 to 104 for '100:105', and no steps for ''.

    Raises:
      UserError: The first step is below 1, the end is not above the first step, or the last step is above `total`, the
        number of steps of the run, which the message calls `run`.
    """
    if not profile:
        return range(0)
    first, end = map(int, profile.split(':'))
    if not 1 <= first < end:
        expected = 'FIRST:END with FIRST at least 1 and END above FIRST'
        fix = 'for example --config.profile=100:105, the steps 100 to 104'
        raise UserError('config.profile', repr(profile), expected, fix)
    if end - 1 > total:
        fix = f'for example --config.profile={max(total - 5, 1)}:{total + 1}'
        raise UserError('config.profile', repr(profile), f'steps up to {total}, the last of {run}', fix)
    return range(first, end)


class Profiler:
    """Traces `steps` into WORKDIR/profile, unless that folder already exists. Only the primary process traces.

    If a trace fails, the profiler logs a warning and training continues.
    """

    def __init__(self, folder: pathlib.Path, steps: range, log: Callable[[str], None]):
        self._folder, self._steps, self._log = folder / PROFILE, steps if is_primary() else range(0), log
        self._is_tracing, self._traced = False, []

    def during(self, step: int, drain: Callable[[], None]) -> contextlib.AbstractContextManager:
        """Returns the context to run a step in. `drain` waits until all previous steps are done."""
        if step not in self._steps:
            return contextlib.nullcontext()
        if not self._is_tracing:
            drain()
            self._start()
        self._traced.append(step)
        return jax.profiler.StepTraceAnnotation('train', step_num=step)

    def after(self, step: int, drain: Callable[[], None]) -> None:
        """Ends the trace after its last step."""
        if self._is_tracing and step == self._steps[-1]:
            drain()
            self.close()

    def close(self) -> None:
        """Ends a running trace."""
        if not self._is_tracing:
            return
        self._is_tracing = False
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # any error: a failed trace must not stop training
            logging.warning('the trace of config.profile failed: %s', error)
            return
        self._log(f'traced steps {self._traced[0]} to {self._traced[-1]}: xprof --logdir={self._folder}')

    def _start(self) -> None:
        if self._folder.exists():
            self._log(f'{self._folder} exists already, so no steps are traced; remove it to trace them')
            self._steps = range(0)
            return
        try:
            jax.profiler.start_trace(self._folder, profiler_options=_OPTIONS)
            self._is_tracing = True
        except Exception as error:  # any error, for example because another trace is running
            logging.warning('no trace for config.profile: %s', error)
            self._steps = range(0)
