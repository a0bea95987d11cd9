"""Runs config.sweep: trials that differ in some settings and are trained in groups."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.config.plain import dump, to_plain
from bertjax.config.resume import changed_keys, place_of, without
from bertjax.config.schema import MACHINE, VERB
from bertjax.data.length_buckets import MAX_LENGTHS
from bertjax.errors import PreemptedError, UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import real_path
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.packing import decide_packing
from bertjax.finetune.results import RESULTS, evaluate_split, export_task
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TASK_FILE, TaskData
from bertjax.finetune.task_model import TaskModel, prepare
from bertjax.finetune.trials import Trial, dev_score, make_trials, summarize, sweep_table
from bertjax.metrics.rows import task_values
from bertjax.parallel.distributed import (
    OtherStoppedError,
    broadcast_from_primary,
    decide_on_primary,
    is_primary,
    primary_first,
    remove_on_all,
)
from bertjax.terminal import Console
from bertjax.training.caller import CALLER
from bertjax.training.compiled_steps import StepLowering
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.health.profiler import profiled_steps
from bertjax.training.phase import Experiment, Phase
from bertjax.training.settings import resolve_durations
from bertjax.training.state import TrainState, shardings_of
from bertjax.training.trainer import check_same_data, resume_or_start
from bertjax.training.vmapped_runs import VmappedRun, select_run, stack_states, stacked_template
from bertjax.workdir.exports import exported_model, push_export
from bertjax.workdir.files import read_recorded_config, read_recorded_results
from bertjax.workdir.lock import EXPORTED, SWEEP, TRIALS, exported_trial
from bertjax.writers.console import format_value

_UNFINISHED = '.unfinished'  # the folder in the workdir with the checkpoints of unfinished trials


def run_sweep(folder: pathlib.Path, data: TaskData, mesh: Mesh) -> None:
    """Runs the trials that have no results, exports the best trial, writes sweep.json and prints the table.

    Raises:
      UserError: The workdir has a sweep with other settings.
      PreemptedError: SIGTERM or Ctrl-C stopped the sweep. All results and the training state are saved.
    """
    settings = data.settings
    trials = make_trials(settings)
    with primary_first():
        split = data.split('train', training=True)
        pending = [trial for trial in trials if _read_results(folder, trial) is None]
        for trial in pending:  # raises if the trial has too few steps
            profiled_steps(settings.profile, split.total_steps(trial.settings(settings)), f'the trial {trial.name}')
        # The first trial decides whether the rows of all trials are packed.
        first = data.with_settings(trials[0].settings(settings))
        recorded = ''
        if (folder / TRIALS).exists():  # if config.json is damaged, `_check_same_settings` reports it
            recorded = read_json_or_none(folder / 'config.json', lambda config: config['packing']) or ''
        packing = decide_packing(first, mesh, recorded)
        # The default number of padded lengths is high, because trials share compiled steps.
        lengths = settings.max_padded_lengths or MAX_LENGTHS
        settings = dataclasses.replace(packing.apply(settings), max_padded_lengths=lengths)
        data = data.with_settings(settings)
        _check_same_settings(data, folder)
        if is_primary():  # a single run that was killed before its first checkpoint may have left this file
            (folder / TASK_FILE).unlink(missing_ok=True)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f'{len(trials)} runs, {len(trials) - len(pending)} of them already finished')
    trials_by_shape = collections.Counter(trial.shape for trial in trials)
    with Interrupt() as interrupt:
        for shape, group in itertools.groupby(pending, key=lambda trial: trial.shape):
            members = list(group)
            group_data = data.with_settings(members[0].settings(settings))
            layout = decide_packing(group_data, mesh).layout
            with primary_first():
                task_model = prepare(
                    group_data, mesh, settings.max_padded_lengths, layout=layout, selection_key='config.sweep'
                )
            single = TrialGroup(members[:1], task_model, folder)
            # `trials_by_shape` includes finished trials, so that a restarted sweep makes groups of the same size and
            # can resume an interrupted group.
            size = min(settings.sweep.together or find_group_size(single, trials_by_shape[shape]), len(members))
            group_text = f', {size} at a time' if size > 1 else ''
            console.print(
                f'trainable={shape[0]}, batches of {shape[1]}, {single.epochs:.3g} epochs: '
                f'{len(members)} runs{group_text}; {"packed" if layout else "not packed"}: {packing.reason}',
                markup=False,
            )
            logging.info('attention: %s', task_model.attention)
            for first in range(0, len(members), size):
                if broadcast_from_primary(interrupt.requested()):
                    word = CALLER.get().word
                    raise PreemptedError(f'stopped on request; the same {word} continues with the remaining runs')
                TrialGroup(members[first : first + size], task_model, folder).run(interrupt)
    remove_on_all(folder / _UNFINISHED)  # left if an earlier process was killed after its last result
    summary = summarize([(trial, _read_results(folder, trial)) for trial in trials], data.task.score)
    write_atomic(folder / SWEEP, json.dumps(summary, indent=2) + '\n')
    console.print(sweep_table(summary))
    console.print(f'the best on dev: {summary["best"]}, in {folder / TRIALS}', markup=False)
    exported = exported_trial(folder)
    if settings.export and exported:
        other = f'the model of {exported}, the best of all runs in the workdir'
        model_text = 'its model' if exported == summary['best'] else other
        console.print(f'{model_text}: {exported_model(folder) or folder / "export"}', markup=False)
        push_export(folder, settings.push_to, private=settings.push_private)


def _check_same_settings(data: TaskData, folder: pathlib.Path) -> None:
    """Raises a UserError if the workdir has trials with other settings, else writes config.json.

    config.sweep may change, because trials may be added to a sweep. MACHINE and VERB keys may change too, and so may
    config.data, which a fingerprint identifies, and config.init if its folder was moved together with the workdir.
    """
    path = folder / 'config.json'
    config = {**to_plain(data.settings), 'fingerprints': data.fingerprints() | data.eval_fingerprints()}
    if path.exists() and (folder / TRIALS).exists():
        for key, (old, new, change) in changed_keys(read_recorded_config(path), config).items():
            is_moved = key == 'data' or (
                key == 'init'
                and f'../{pathlib.Path(old).name}' == _portable_init(new, folder)
                and (not pathlib.Path(old).exists() or real_path(old) == real_path(new))
            )
            if change not in (MACHINE, VERB) and not key.startswith('sweep.') and not is_moved:
                fix = 'restore the old value to continue the sweep, or give another --workdir'
                raise UserError(place_of(key), str(new), f'{old}, as in {path}', fix)
    write_atomic(path, dump(config))


def _portable_init(init: str, folder: pathlib.Path) -> str:
    """Returns config.init, relative to the workdir if both are in the same folder, as in a benchmark.

    This path stays the same if the common parent is moved, or has another name on the command line.
    """
    path = pathlib.Path(init)
    is_sibling = path.exists() and path.resolve().parent == folder.resolve().parent  # a name on the Hub is not a path
    return f'../{path.name}' if is_sibling else init


def _read_results(folder: pathlib.Path, trial: Trial) -> dict[str, Any] | None:
    path = folder / TRIALS / trial.name / RESULTS
    return read_recorded_results(path) if path.exists() else None


class TrialGroup(Experiment):
    """Trials with the same `Trial.shape`, trained together for `total` steps, which are `epochs` epochs."""

    values = staticmethod(task_values)

    def __init__(self, trials: Sequence[Trial], task_model: TaskModel, folder: pathlib.Path):
        settings = task_model.settings
        self.trials, self.task_model, self.setup = trials, task_model, task_model.setup
        self.folders = [folder / TRIALS / trial.name for trial in trials]
        self._folder = folder
        all_settings: list[FinetuningSettings] = [trial.settings(settings) for trial in trials]
        self._examples = [task_model.examples(one.run_seeds.data) for one in all_settings]
        batches = self._examples[0].batches
        self.total = settings.total_steps(batches)
        self.epochs = self.total / batches
        durations = {**resolve_durations(settings, self.total, batches), 'steps': self.total}
        self._settings = [dataclasses.replace(one, **durations) for one in all_settings]
        self.settings = self._settings[0]
        self.resolved = {**self.run_configs[0], 'members': [trial.name for trial in trials]}

    @functools.cached_property
    def run_configs(self) -> list[dict[str, Any]]:
        """See `Experiment`."""
        shared = {'mesh': self.settings.mesh_axes, 'fingerprints': self.task_model.data.fingerprints()}
        # The list of trials is left out, because trials may be added to a sweep.
        return [without(to_plain(settings), 'sweep', MACHINE, VERB) | shared for settings in self._settings]

    def eval_fingerprints(self) -> dict[str, str]:
        """See `Experiment`."""
        return self.task_model.data.eval_fingerprints()

    @functools.cached_property
    def template(self) -> TrainState:
        """The shapes, dtypes and shardings of the training states of all trials, stacked."""
        return stacked_template(self.setup.state, len(self.trials))

    def init_state(self) -> TrainState:
        """Returns the training states of all trials at step 0, stacked."""
        seeds = [settings.run_seeds.init for settings in self._settings]
        states = stack_states([self.task_model.fresh_state(seed)[0] for seed in seeds])
        return jax.device_put(states, shardings_of(self.template))

    def phases(self) -> list[Phase]:
        """Returns the single phase of all trials, without evaluations, because `run` evaluates the trials later."""
        members = [
            VmappedRun(examples, settings.learning_rate, settings.run_seeds.dropout)
            for examples, settings in zip(self._examples, self._settings, strict=True)
        ]
        return [self.task_model.phase(members, self.total, stacked=True)]

    def run(self, interrupt: Interrupt) -> None:
        """Trains and evaluates the trials, and writes their results. An interrupted group is resumed."""
        check_same_data(self)
        # The key identifies the trials and their settings. Checkpoints with another key cannot be resumed. The mesh is
        # left out, because it may change, and the path of the data, because a fingerprint identifies the data.
        init = _portable_init(self.resolved['init'], self._folder)
        facts = {**self.resolved, 'mesh': {}, 'data': '', 'init': init}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        unfinished = self._folder / _UNFINISHED / key
        with contextlib.closing(Checkpoints(unfinished, keep=1)) as checkpoints:
            try:
                checkpoint = checkpoints.latest()
            except (UserError, OtherStoppedError) as error:
                if error.exit_status != UserError.exit_status:
                    raise
                checkpoint = None  # all checkpoints are damaged, so the trials start again
            restarted = [path.name for path in self.folders if checkpoint is None and (path / 'ledger.jsonl').exists()]
            if restarted:
                reason = 'because no undamaged checkpoint has exactly these runs'
                print(f'starting again at step 0, {reason}: {"; ".join(restarted)}')
            state, failed = resume_or_start(self, checkpoints, checkpoint, interrupt)
            interrupt.doing = 'the runs are being evaluated'
            self._finish(state.eval_params, failed)
        remove_on_all(unfinished)
        interrupt.doing = 'the next runs are being prepared'

    def _finish(self, params: Any, failed: Sequence[bool]) -> None:
        """Writes the metrics and predictions of each trial, and exports each model that is the best so far.

        The results are written after the last export, because a trial with results is not evaluated again.
        """
        task_model, data = self.task_model, self.task_model.data
        predictor = task_model.predictor(members=len(self.trials))
        outputs = {name: predictor.outputs(params, data.split(name).features) for name in data.eval_splits}
        finished: list[dict[str, Any]] = []
        for m, (trial, settings) in enumerate(zip(self.trials, self._settings, strict=True)):
            trial_outputs = {
                name: {output: [row[m] for row in rows] for output, rows in split_outputs.items()}
                for name, split_outputs in outputs.items()
            }
            results: dict[str, Any] = {'task': data.task.name, 'score': data.task.score, **dataclasses.asdict(trial)}
            results |= {'steps': self.total, 'splits': {}}
            evaluation, _ = evaluate_split(data, trial_outputs, self.folders[m] / 'predictions')
            results |= evaluation
            results['collapsed'] |= failed[m]
            if self.settings.export and decide_on_primary(functools.partial(self._is_best, results, finished)):
                config = {**to_plain(settings), 'epochs': self.epochs}
                formats = self.settings.formats
                export_task(self._folder, config, task_model, select_run(params, m), results, formats)
                write_atomic(self._folder / EXPORTED, f'{trial.name}\n')
            finished.append(results)
            print(f'{trial.name}: {data.task.score} {format_value(results["splits"]["dev"][data.task.score])}')

        for folder, results in zip(self.folders, finished, strict=True):
            write_atomic(folder / RESULTS, json.dumps(results, indent=2) + '\n')

    def _is_best(self, results: dict[str, Any], finished: Sequence[dict[str, Any]]) -> bool:
        """Returns whether a trial is better than all those with results in the workdir and all those in `finished`.

        Without an export, the trial may also be as good as others.
        """
        better = operator.gt if exported_trial(self._folder) else operator.ge
        recorded = [read_recorded_results(path) for path in self._folder.glob(f'{TRIALS}/*/{RESULTS}')]
        return all(better(dev_score(results), dev_score(other)) for other in (*recorded, *finished))


def find_group_size(group: TrialGroup, count: int) -> int:
    """Returns the number of trials to train together: `count`, halved until that many fit in the memory of a device.

    The result is 1 on a device that reports no memory limit, such as a CPU, where training several trials together is
    not faster. `group` consists of one of the trials.
    """
    limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
    if not limit:
        return 1
    (phase,) = group.phases()
    longest = max(phase.batches)
    while count > 1:
        lowered = StepLowering(phase.setup, phase.settings, members=count).step(phase.batches[longest])
        try:
            memory = lowered.compile().memory_analysis()
            # Before the first step, `stack_states` holds all states twice.
            needed = memory.argument_size_in_bytes + max(memory.temp_size_in_bytes, memory.argument_size_in_bytes)
            fits = needed < 0.9 * limit
        except jax.errors.JaxRuntimeError as error:  # raised by the compiler for TPUs if the step does not fit
            if 'RESOURCE_EXHAUSTED' not in str(error):
                raise
            fits = False
        if fits:
            break
        count = -(-count // 2)
    return broadcast_from_primary(count)
