"""A training of any kind in its workdir: begun or continued, shown, recorded, saved."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.checkpoint import Checkpoints, Position
from bertjax.checkpoint.compatible import check_resume
from bertjax.config import dump
from bertjax.errors import UserError
from bertjax.files import write_atomic
from bertjax.parallel.partition import mesh_context
from bertjax.runs._interrupt import Interrupt
from bertjax.train.loop import Phase, train
from bertjax.train.record import Recorder, Reporting
from bertjax.train.state import TrainState
from bertjax.train.throughput import Stopwatch
from bertjax.writers.console import TrainingConsole


def train_in(
    folder: pathlib.Path,
    config: ConfigDict,
    plan: Mapping[str, Any],
    mesh: Mesh,
    *,
    template: TrainState,
    fresh: Callable[[], TrainState],
    phases: Callable[[], Sequence[Phase]],
    reporting: Reporting,
    select: str = 'last',
) -> TrainState:
    """Trains to the end of the last phase, from the newest whole checkpoint of the workdir or from the start.

    Args:
      folder: the workdir.
      config: the recipe's, for what may change on resume.
      plan: the resolved config, with `steps`, `eval_every` and `checkpoint_every` in steps: what config.json and every
        checkpoint hold.
      mesh: see `template`.
      template: abstract state with its shardings.
      fresh: () -> the state of step 0.
      phases: () -> the phases; called, as `fresh` is, when everything that can be refused has been.
      reporting: how what is measured becomes rows.
      select: the state to return: that of the 'last' step, or of the saved step that was 'best' on dev.

    Raises:
      UserError: the checkpoints are another run's or a longer one's, or all damaged.
      PreemptedError, NonFiniteError: see `train.loop.train`.
    """
    total = plan['steps']
    checkpoints = Checkpoints(folder / 'checkpoints', keep=config.checkpoint_keep, log=print)
    try:
        saved = checkpoints.latest()
        if saved is not None:
            step = saved.position.step
            if step > total:
                mend = 'raise config.steps or config.epochs, or give another --workdir'
                raise UserError('config.steps', f'a run of {total} steps', f'{step} or more, as {folder} has', mend)
            for line in check_resume(saved.config, plan, str(folder), finished=step == total):
                print(f'changed since the checkpoint: {line}')
        write_atomic(folder / 'config.json', dump(plan))
        position = saved.position if saved else Position()
        with mesh_context(mesh):
            if saved is not None:
                state = checkpoints.restore(position.step, template)
                print(f'continuing at step {position.step} of {total}')
            else:
                state = fresh()
        stages = phases()
        stopwatch = Stopwatch()
        with TrainingConsole(total, position.step) as console, Interrupt() as interrupt:
            recorder = Recorder(
                folder, console, stopwatch, log_every=config.log_every, total=total, reporting=reporting
            )
            recorder.forget_after(position.step if saved else -1)
            try:
                state = train(
                    state,
                    position,
                    stages,
                    recorder=recorder,
                    stopwatch=stopwatch,
                    save=lambda state, position, cost: checkpoints.save(state, position, plan, cost),
                    eval_every=plan['eval_every'],
                    checkpoint_every=plan['checkpoint_every'],
                    interrupted=interrupt.requested,
                )
            finally:
                recorder.close()
        if select == 'best':
            checkpoints.wait()
            best = checkpoints.best()
            if best is not None and best != total:
                print(f'the best on {reporting.split} of what was saved is step {best}')
                with mesh_context(mesh):
                    state = checkpoints.restore(best, template)
    finally:
        checkpoints.close()
    return state
