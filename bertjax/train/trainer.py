"""A training in its workdir, of whatever kind: begun or continued, shown, recorded, saved."""

import contextlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from absl import logging

from bertjax.checkpoint import Checkpoints, Position, SavedCheckpoint
from bertjax.config.plain import dump
from bertjax.config.resume import check_resume
from bertjax.config.run import RunKeys
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.metrics.rows import Sums
from bertjax.parallel.distributed import is_primary
from bertjax.parallel.partition import mesh_context
from bertjax.train.early_stopping import STATE_KEY, EarlyStopping
from bertjax.train.health.goodput_clock import RESTORE, SAVE, GoodputClock
from bertjax.train.health.interrupt import Interrupt
from bertjax.train.health.profiler import profiled_steps
from bertjax.train.health.watchdog import watch_for_hangs
from bertjax.train.loop import Intervals, Loop
from bertjax.train.phase import Phase
from bertjax.train.record import Recorder
from bertjax.train.setup import Setup
from bertjax.train.state import TrainState
from bertjax.workdir.lock import TRIALS
from bertjax.writers.console import TrainingConsole
from bertjax.writers.tracker import Tracker


class Experiment(Protocol):
    """What can be trained: a pre-training, a fine-tuning, several fine-tunings together.

    Attributes:
      settings: of its config, with `steps`, `eval_every` and `checkpoint_every` in steps.
      setup: its model and optimiser on the mesh.
      resolved: the settings in plain form, with fingerprints: what config.json and every checkpoint hold.
      folders: where rows and ledger of each run go.
      template: abstract state with its shardings.
      values: sums of training batches -> values of a row.
      files: {name in the workdir: text} of what is to be written before the first step.
    """

    settings: RunKeys
    setup: Setup
    resolved: Mapping[str, Any]
    folders: Sequence[pathlib.Path]
    template: TrainState
    values: Callable[[Sums], dict[str, float | None]]
    files: Mapping[str, str]

    def fresh(self) -> TrainState:
        """The state of step 0."""
        ...

    def phases(self) -> Sequence[Phase]:
        """What the loop works through."""
        ...

    def describe(self) -> str:
        """A description that is printed before training starts; '' for none."""
        ...

    def details(self) -> str:
        """Lines for the log: the mesh, the attention, which parameters decay; '' for none."""
        ...


def fit(folder: pathlib.Path, experiment: Experiment, *, use_checkpoint: str = 'last') -> tuple[TrainState, int]:
    """Trains a run to the end, from the newest whole checkpoint of its workdir or from the start.

    Args:
      folder: the workdir.
      experiment: of one run.
      use_checkpoint: the state to return: that of the 'last' step, or of the saved step that was 'best' on dev.

    Returns:
      The state, and the last step that was trained: one before config.steps where config.patience ended the run.

    Raises:
      UserError: the checkpoints are another run's or a longer one's, or all damaged.
      PreemptedError, NonFiniteError: see `train.loop.Loop.run`.
    """
    resolved, keep = experiment.resolved, experiment.settings.checkpoint_keep
    # A signal is noted until the last checkpoint is whole: the handlers stay while it is closed.
    with Interrupt() as interrupt, contextlib.closing(Checkpoints(folder / 'checkpoints', keep=keep)) as checkpoints:
        saved = checkpoints.latest()
        if saved is not None:
            _check_same_run(saved, experiment.settings, resolved, folder)
        for name, text in {'config.json': dump(resolved), **experiment.files}.items():
            write_atomic(folder / name, text)
        state, _ = resume_or_start(experiment, checkpoints, saved, interrupt)
        last = int(state.step)
        if use_checkpoint == 'best':
            checkpoints.wait()
            best = checkpoints.best()
            if best is not None and best != last:
                print(f'the best on dev of what was saved is step {best}')
                with mesh_context(experiment.setup.mesh):
                    state = checkpoints.restore(best, experiment.template)
    return state, last


def _check_same_run(
    saved: SavedCheckpoint, settings: RunKeys, resolved: Mapping[str, Any], folder: pathlib.Path
) -> None:
    """Refuses to continue another run, or a longer one; says what has changed and may."""
    step, total = saved.position.step, settings.steps
    then = {key: value for key, value in saved.config.items() if key != STATE_KEY}
    if step > total:
        fix = 'raise config.steps or config.epochs, or give another --workdir'
        raise UserError('config.steps', f'a run of {total} steps', f'{step} or more, as {folder} has', fix)
    finished = step == total or make_early_stopping(settings, saved).should_stop
    for line in check_resume(then, resolved, str(folder), finished=finished):
        print(f'changed since the checkpoint: {line}')


def make_early_stopping(settings: RunKeys, saved: SavedCheckpoint | None) -> EarlyStopping:
    """config.patience, and how much of it was used up when the run was saved."""
    return EarlyStopping(settings.patience, saved.config.get(STATE_KEY) if saved else None)


def resume_or_start(
    experiment: Experiment, checkpoints: Checkpoints, saved: SavedCheckpoint | None, interrupt: Interrupt
) -> tuple[TrainState, list[bool]]:
    """Trains to the end of the last phase.

    Args:
      experiment: of one run or of several together.
      checkpoints: where it is saved.
      saved: of these checkpoints, where to continue; None to begin.
      interrupt: entered.

    Returns:
      The final state, and of each run whether it has failed (see `Recorder`).
    """
    settings, total = experiment.settings, experiment.settings.steps
    position = saved.position if saved else Position()
    profiled = profiled_steps(settings.profile)
    if profiled and profiled[-1] > total:
        fix = f'for example --config.profile={max(total - 5, 1)}:{total}'
        raise UserError('config.profile', repr(settings.profile), f'steps of a run that has {total}', fix)
    folder = experiment.folders[0]
    with (
        contextlib.closing(GoodputClock(folder, position.step)) as run_clock,
        watch_for_hangs(run_clock, settings.hang_minutes, folder),
        contextlib.ExitStack() as shown,
    ):
        with mesh_context(experiment.setup.mesh):
            if saved is not None:
                with run_clock.during(RESTORE):
                    state = checkpoints.restore(position.step, experiment.template)
                done = position.step == total
                print(f'all {total} steps are done' if done else f'continuing at step {position.step} of {total}')
            else:
                state = experiment.fresh()
        description = experiment.describe()
        if description:
            print(description)
        for line in experiment.details().splitlines() if is_primary() else ():
            logging.info('%s', line)
        phases, early_stopping = experiment.phases(), make_early_stopping(settings, saved)
        recorder = Recorder(
            experiment.folders,
            shown.enter_context(TrainingConsole(total, position.step)),
            values=experiment.values,
            log_every=settings.log_every,
            total=total,
            run_clock=run_clock,
            profiled=profiled,
            stacked=phases[0].stacked,
            failed=saved.config.get('failed', ()) if saved else (),
            trackers=_trackers(experiment),
        )
        if saved is not None:
            recorder.check(position)
        recorder.truncate_after(position.step if saved else -1)
        try:
            state = Loop(
                phases,
                recorder=recorder,
                checkpoints=checkpoints,
                config=experiment.resolved,
                intervals=Intervals(settings.eval_every, settings.checkpoint_every, settings.checkpoint_minutes),
                interrupt=interrupt,
                early_stopping=early_stopping,
            ).run(state, position)
        finally:
            recorder.close()
        with run_clock.during(SAVE):
            checkpoints.wait()
    if early_stopping.should_stop:
        print(f'step {int(state.step)} is the last: {early_stopping.limit} evaluations in a row were no better on dev')
    return state, recorder.failed


def _trackers(experiment: Experiment) -> list[Tracker]:
    """One for each run; a trial's is called after the sweep, too."""
    tracking, trackers = experiment.settings.tracking, []
    for folder in experiment.folders if tracking.service and is_primary() else ():
        own = folder.resolve()
        trial = own.parent.name == TRIALS
        name = tracking.run or (own.parents[1] if trial else own).name
        trackers.append(tracking.writer(folder, f'{name}/{own.name}' if trial else name, experiment.resolved))
    return trackers
