"""Starts or resumes a training of any kind. Its records and checkpoints go to a workdir."""

import contextlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from bertjax.checkpoint.checkpoints import Checkpoints, SavedCheckpoint
from bertjax.checkpoint.position import Position
from bertjax.config.plain import dump
from bertjax.config.resume import START_WEIGHTS, check_processes, check_resume
from bertjax.config.run import RunKeys
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import display_path
from bertjax.parallel.distributed import gather_texts, is_multiprocess, is_primary
from bertjax.parallel.partition import mesh_context
from bertjax.training.early_stopping import STATE_KEY, EarlyStopping
from bertjax.training.health.goodput_clock import RESTORE, SAVE, GoodputClock
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.health.profiler import profiled_steps
from bertjax.training.health.watchdog import watch_for_hangs
from bertjax.training.loop import Loop
from bertjax.training.phase import Experiment
from bertjax.training.record import Recorder
from bertjax.training.state import TrainState
from bertjax.training.time_limit import TimeLimit
from bertjax.writers.console import TrainingConsole


def fit(
    folder: pathlib.Path, experiment: Experiment, *, use_checkpoint: str = 'last', time_limit: TimeLimit | None = None
) -> tuple[TrainState, int]:
    """Trains a run to the end, from the newest undamaged checkpoint of its workdir or from the start.

    Args:
      use_checkpoint: The state to return: 'last' for the last step, 'best' for the saved step with the best dev score.
      time_limit: The time limit that determines the number of steps; None if the config determines this number.

    Returns:
      The state and the last step, which is below config.steps if config.patience ended the run.

    Raises:
      UserError: The checkpoints are from another or a longer run, all of them are damaged, config.profile ends after
        the last step, or the processes have different data.
      PreemptedError, PhaseTimeError, NonFiniteError: See `training.loop.Loop.run`.
    """
    check_same_data(experiment)
    resolved, keep = experiment.resolved, experiment.settings.checkpoint_keep
    # The checkpoints close before the signal handlers are removed, so that a signal cannot interrupt the last save.
    with Interrupt() as interrupt, contextlib.closing(Checkpoints(folder / 'checkpoints', keep=keep)) as checkpoints:
        saved, finished = checkpoints.latest(), False
        if saved is not None:
            finished = _check_same_run(saved, experiment.settings, resolved, folder, timed=time_limit is not None)
            # These keys have no effect any more, so the records keep the values that the run used.
            resolved.update({name: saved.config[name] for name in START_WEIGHTS if name in saved.config})
        # A finished run has added results to its files, such as a threshold that was chosen after the training.
        files = {name: text for name, text in experiment.files.items() if not (finished and (folder / name).exists())}
        for name, text in {'config.json': dump(resolved), **files}.items():
            write_atomic(folder / name, text)
        state, _ = resume_or_start(experiment, checkpoints, saved, interrupt, time_limit)
        last = int(state.step)
        if use_checkpoint == 'best':
            checkpoints.wait()
            best = checkpoints.best()
            if best is not None and best != last:
                print(f'the saved step with the best dev score is {best}')
                with mesh_context(experiment.setup.mesh):
                    state = checkpoints.restore(best, experiment.template)
        interrupt.doing = 'the results are being written'
    return state, last


def check_same_data(experiment: Experiment) -> None:
    """Raises a UserError in all processes if their tokenizers, data or teachers differ. All processes must call this.

    The data are the token stores, or the features of all splits of a task.
    """
    if is_multiprocess():
        fingerprints = experiment.resolved['fingerprints'] | experiment.eval_fingerprints()
        texts = gather_texts(dump({'fingerprints': fingerprints}))
        check_processes([json.loads(text) for text in texts])


def _check_same_run(
    saved: SavedCheckpoint, settings: RunKeys, resolved: Mapping[str, Any], folder: pathlib.Path, *, timed: bool = False
) -> bool:
    """Raises a UserError if the checkpoint is from another or a longer run, and returns whether the run is finished.

    Allowed changes are printed, except those of the steps and phases of a `timed` run.
    """
    if ('task' in saved.config) != ('task' in resolved):
        kind = 'a fine-tuning' if 'task' in saved.config else 'a pre-training'
        raise UserError('--workdir', f'{folder}, which has {kind}', 'another folder for this run', 'give a new folder')
    step, total = saved.position.step, settings.steps
    saved_config = {key: value for key, value in saved.config.items() if key != STATE_KEY}
    if step > total:
        fix = 'raise config.steps or config.epochs, or give another --workdir'
        expected = f'at least {step}, because {folder} has a checkpoint of that step'
        raise UserError('config.steps', str(total), expected, fix)
    finished = step == total or EarlyStopping(settings.patience, saved.config).should_stop
    for line in check_resume(saved_config, resolved, display_path(folder), finished=finished):
        if not (timed and line.startswith(('steps: ', 'phases'))):
            print(f'changed since the checkpoint: {line}')
    return finished


def resume_or_start(
    experiment: Experiment,
    checkpoints: Checkpoints,
    saved: SavedCheckpoint | None,
    interrupt: Interrupt,
    time_limit: TimeLimit | None = None,
) -> tuple[TrainState, list[bool]]:
    """Resumes a training from the checkpoint `saved`, or starts it, and runs it to the end of the last phase.

    Returns:
      The final state, and a list of whether each run has failed (see `Recorder`).
    """
    settings, total = experiment.settings, experiment.settings.steps
    position = saved.position if saved else Position()
    profiled = profiled_steps(settings.profile, total)
    folder, early_stopping = experiment.folders[0], EarlyStopping(settings.patience, saved.config if saved else {})
    if time_limit is not None:
        time_limit.begin(folder, position.step)
    with (
        contextlib.closing(GoodputClock(folder, position.step)) as run_clock,
        watch_for_hangs(run_clock, settings.hang_minutes, folder),
    ):
        with mesh_context(experiment.setup.mesh):
            if saved is not None:
                with run_clock.during(RESTORE):
                    state = checkpoints.restore(position.step, experiment.template)
                if position.step == total:
                    print(f'all {total} steps are done')
                elif not early_stopping.should_stop:
                    of_total = '' if time_limit is not None else f' of {total}'
                    print(f'continuing at step {position.step}{of_total}')
            else:
                state = experiment.init_state()
        if description := experiment.describe():
            print(description)
        for line in experiment.details().splitlines() if is_primary() else ():
            logging.info('%s', line)
        experiment.position = position
        phases = experiment.phases()
        describe_time = time_limit.describe if time_limit else None
        failed, stacked = saved.config.get('failed', ()) if saved else (), phases[0].stacked
        costs = [(phase.settings.last_step, phase.flops_per_row * phase.settings.batch_size or 1.0) for phase in phases]
        with TrainingConsole(total, position.step, describe_time, costs) as console:
            recorder = Recorder(experiment, console, run_clock, profiled=profiled, stacked=stacked, failed=failed)
            with contextlib.closing(recorder):
                if saved is not None:
                    recorder.check(position)
                recorder.truncate_after(position.step if saved else -1)
                loop = Loop(experiment, phases, recorder, checkpoints, interrupt, early_stopping, time_limit)
                state = loop.run(state, position)
            with run_clock.during(SAVE):
                checkpoints.wait()
    if early_stopping.should_stop:
        print(f'step {int(state.step)} is the last: {early_stopping.limit} evaluations in a row were no better on dev')
    return state, recorder.failed
