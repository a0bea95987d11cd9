"""Checks a run before it starts: its config, data, memory, disk space and duration.

The duration is estimated from steps that are timed on this machine. With config.topology, the compiler estimates it.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Collection, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import Mesh

from bertjax.config.ranges import is_in_epochs
from bertjax.config.run import RunKeys
from bertjax.cost.memory_search import MemorySearch
from bertjax.data.batch import count_batches
from bertjax.distill.run import resolve_student
from bertjax.distill.settings import DistillationSettings
from bertjax.distill.teacher import KEY
from bertjax.doctor.check import FAIL, OK, WARN, Check, check
from bertjax.doctor.machine import disk_space, gib
from bertjax.files.paths import display_path, is_remote
from bertjax.finetune.benchmark import parse_tasks
from bertjax.finetune.ensemble import member_folders
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TaskData, data_from_source
from bertjax.finetune.task_model import prepare
from bertjax.finetune.trials import make_trials
from bertjax.memory import host_memory
from bertjax.model.config import BertConfig, parameter_count, train_flops_per_sequence
from bertjax.parallel.devices import device_memory
from bertjax.parallel.mesh import is_cpu, make_mesh, row_shards
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.heldout import check_texts, read_heldout_pairs
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.warm_start import read_matrix
from bertjax.remote.cache import VARIABLE, cache_folder
from bertjax.remote.paths import user_path
from bertjax.report.run_record import quiet
from bertjax.text.added_words import read_words
from bertjax.training.settings import check_row_count
from bertjax.training.step_time import TIMED_STEPS, time_phase, time_steps
from bertjax.training.vmapped_runs import VmappedRun
from bertjax.workdir.exports import check_push_to
from bertjax.workdir.lock import check_workdir_kind, has_checkpoints
from bertjax.workdir.resolve_path import huggingface_directory

_CPU_FLOPS = 3e11  # a step that is timed on a CPU has at most about this many FLOPs, and takes a few seconds
_CPU_ROWS = 16  # the maximum rows of a fine-tuning step that is timed on a CPU
_RECORDS = 256  # the maximum number of records for the timed steps of fine-tuning
_LONG = 30 * 24  # hours; a longer run gets a warning
_ASSUMED_STEPS = 1_000_000  # the assumed length of a run whose corpus determines the number of steps


@check('disk')
def disk(settings: RunKeys, model: BertConfig, folder: pathlib.Path) -> Iterator[Check]:
    """Compares the free disk space with the size of a run's checkpoints and exports."""
    weights = parameter_count(model) * jnp.dtype(model.param_dtype).itemsize
    # The best checkpoint and the checkpoint that is being written must fit.
    more, arrays = settings.checkpoint_keep, 1 + settings.moments
    needed = {'two checkpoints': 2 * arrays * weights, f'{more} more': arrays * weights * more}
    needed |= {'export': weights * len(settings.formats)} if settings.formats else {}
    if is_remote(display_path(folder)):  # the run works in a mirror of its bucket
        yield from disk_space(cache_folder(), needed, f'set {VARIABLE} to a folder on another disk')
    else:
        yield from disk_space(folder, needed)


@check('config')
def config(settings: PretrainingSettings, folder: pathlib.Path) -> Iterator[Check]:
    """Checks the config values that can be checked without building a store."""
    settings.check()
    check_workdir_kind(folder, 'a pre-training')
    check_push_to(settings.push_to, settings.formats)
    check_texts(settings, folder)
    read_heldout_pairs(settings, folder)
    if not has_checkpoints(folder):
        if settings.vocab.add:
            read_words(user_path(settings.vocab.add, 'config.vocab.add'))
        if settings.embeddings:
            read_matrix(settings.embeddings)
    vocab_size = settings.vocab.size
    yield Check('config', OK, f'{_sizes(settings.model_config(vocab_size))} with a vocabulary of {vocab_size:,}')


@check('memory')
def on_slice(settings: PretrainingSettings, done: int, total: int | None) -> Iterator[Check]:
    """Compiles each remaining phase for config.topology, checks that it fits in memory, and estimates the hours.

    Args:
      done: The number of finished steps. The hours do not include them.
      total: The total number of steps; None if the corpus determines it.
    """
    search, hours = MemorySearch(settings, settings.topology), 0.0
    for phase in _phases_after(settings, done, total):
        result = search.compile(phase)
        needed, seconds = result['hbm_bytes_per_chip'], result['estimated_step_s']
        message = f'phase {phase.number}, {phase.batch_size} x {phase.seq_len} on {settings.topology}: '
        message += f'{gib(needed) + " of" if needed else "more than"} {gib(result["hbm_bytes_available"])} per chip'
        if result['fits']:
            yield Check('memory', OK, message)
        else:
            fix = '--config.run=compile finds settings that fit'
            yield Check('memory', FAIL, f'{message}, which does not fit', fix)
        hours += np.nan if seconds is None else _steps_left(phase, done) * seconds / 3600
    if not np.isnan(hours):
        yield _hours(hours, total, f'estimated by the compiler for {settings.topology}')


@check('memory')
def on_this_machine(settings: PretrainingSettings, done: int, total: int | None) -> Iterator[Check]:
    """Checks the memory, and estimates the hours from timed steps. For `done` and `total`, see `on_slice`."""
    mesh, model = make_mesh(settings.mesh_axes), settings.model_config(settings.vocab.size)
    settings.check_devices(mesh)
    setup = build_pretraining_setup(settings, model, mesh)
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((setup.state, setup.state.params)))
    on_cpu, free = is_cpu(mesh), min(psutil.virtual_memory().available, host_memory())
    message = f'{gib(state)} for the state and the gradients; {gib(device_memory(mesh))} on each device'
    if on_cpu and 2 * state > free:
        fix = 'end other programs, or choose a smaller model'
        yield Check('memory', WARN, f'{message}, but only {gib(free)} free, so no step is timed', fix)
        return
    yield Check('memory', OK, message)
    hours, steps = 0.0, []
    for phase in _phases_after(settings, done, total):
        rows = phase.batch_size // phase.grad_accum_steps
        if on_cpu:
            flops = train_flops_per_sequence(model, phase.seq_len, phase.max_predictions)
            rows = _round_to_shards(min(rows, int(_CPU_FLOPS / flops)), row_shards(mesh))
        try:
            part = dataclasses.replace(phase, batch_size=rows, grad_accum_steps=1)
            seconds = time_phase(setup, part, part.batches)
        except jax.errors.JaxRuntimeError as error:
            if 'RESOURCE_EXHAUSTED' not in str(error):
                raise
            fix = f'raise config.grad_accum_steps above {phase.grad_accum_steps}, or set --config.model.remat=full'
            yield Check('memory', FAIL, f'a batch of {rows} x {phase.seq_len} does not fit on the devices', fix)
            return
        hours += _steps_left(phase, done) * seconds * phase.batch_size / rows / 3600
        steps.append(f'{rows} x {phase.seq_len} in {seconds:.3g} s')
    yield _hours(hours, total, f'from steps timed on this machine, {" and ".join(steps)}')


@check('teacher')
def teacher(
    settings: PretrainingSettings | FinetuningSettings, folder: pathlib.Path, flag_keys: Collection[str]
) -> Iterator[Check]:
    """Checks config.distill, and finds the teacher. In pre-training, also compares the student with the teacher."""
    distill = DistillationSettings(**vars(settings.distill))
    distill.check(settings.init, flag_keys)
    directory = huggingface_directory(distill.teacher, f'config.{KEY}')
    if isinstance(settings, PretrainingSettings):
        resolve_student(settings, distill, folder)
    else:
        distill.check_task(settings, flag_keys)
    yield Check('teacher', OK, directory)


@check('data')
def task(settings: FinetuningSettings, folder: pathlib.Path, done: int) -> Iterator[Check]:
    """Reads the records, checks the encoder, and times some steps. Estimates the hours of the steps after `done`."""
    if settings.task['kind'] == 'glue' and (settings.benchmark or len(parse_tasks(settings.task['task'])) > 1):
        yield Check('data', OK, 'run=benchmark checks the settings and the data of all tasks before it trains')
        return
    if settings.ensemble:
        members = member_folders(settings.ensemble, folder)
        yield Check('data', OK, f'an ensemble of {len(members)} workdirs, for run=evaluate and run=predict')
        return
    trials = make_trials(settings)
    check_workdir_kind(folder, 'a sweep' if trials else 'a fine-tuning')
    runs = [trial.settings(settings) for trial in trials] or [settings]
    for one in runs:
        dataclasses.replace(one, run='finetune').check()
    check_push_to(settings.push_to, settings.formats)
    with tempfile.TemporaryDirectory() as scratch, quiet():
        data = data_from_source(settings, pathlib.Path(scratch))
        counts = {name: len(data.task.records(name)) for name in ['train', *data.eval_splits]}
    records = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    yield Check('data', OK, f'{data.task.name}: {records} records')
    mesh = make_mesh(settings.mesh_axes)
    for one in runs:
        check_row_count(one.batch_size, one.grad_accum_steps, row_shards(mesh))
        one.check_memory(data.encoder, mesh, training=True)
    yield Check('encoder', OK, f'{data.source}: {_sizes(data.encoder)}')
    yield from disk(settings, data.encoder, folder)
    train = min(counts['train'], settings.max_train_records or counts['train'])
    augmented = train * (1 + settings.distill.augment) if settings.distill else train
    steps = runs[0].total_steps(count_batches(augmented, runs[0].batch_size))
    with quiet():
        rows, seconds = _time_task(data.with_settings(runs[0]), mesh)
    hours = max(steps - done, 0) * seconds * runs[0].batch_size / rows / 3600
    per_run = f'; for the first of {len(runs)} runs ({trials[0].name})' if len(runs) > 1 else ''
    sample = train if data.task.needs_neighbors else min(_RECORDS, train)
    longest = f'{rows} rows padded to the longest of {sample:,} records'
    yield _hours(hours, steps, f'from steps timed on this machine, {longest} in {seconds:.3g} s{per_run}')


def steps_of(settings: PretrainingSettings) -> int | None:
    """Returns the number of steps that the config sets, or None if the corpus determines it."""
    by_corpus = settings.epochs > 0 or is_in_epochs(settings.steps)
    return None if by_corpus else settings.total_steps(None)


def _sizes(model: BertConfig) -> str:
    return f'{model.num_layers} layers of width {model.width}, {parameter_count(model):,} parameters'


def _round_to_shards(rows: int, shards: int) -> int:
    return max(shards, rows // shards * shards)


def _phases_after(settings: PretrainingSettings, done: int, total: int | None) -> list[PretrainingPhase]:
    return [phase for phase in settings.resolve_phases(total or _ASSUMED_STEPS) if _steps_left(phase, done) > 0]


def _steps_left(phase: PretrainingPhase, done: int) -> float:
    """Returns the number of steps after `done`. A step with a smaller batch counts as a fraction of a step."""
    parts = [(part, part.last_step - max(done, part.first_step)) for part in phase.split()]
    return sum(steps * part.batch_size / phase.batch_size for part, steps in parts if steps > 0)


def _time_task(data: TaskData, mesh: Mesh) -> tuple[int, float]:
    """Times some steps of fine-tuning. Returns the rows of a step and the seconds of the fastest step."""
    settings = data.settings
    rows = settings.batch_size // settings.grad_accum_steps
    if is_cpu(mesh):
        rows = _round_to_shards(min(rows, _CPU_ROWS), row_shards(mesh))
    limits = {'batch_size': rows, 'grad_accum_steps': 1}
    if not data.task.needs_neighbors:  # a sample would lack the neighbors
        limits |= {'max_train_records': _RECORDS, 'max_eval_records': 1}
    with tempfile.TemporaryDirectory() as scratch:
        part = data_from_source(dataclasses.replace(settings, **limits), pathlib.Path(scratch))
        model = prepare(part, mesh, 1)
        member = VmappedRun(model.examples(0), settings.learning_rate, 0)
        phase = model.phase([member], 1 + TIMED_STEPS)
        with mesh_context(mesh), contextlib.closing(phase.load(0)) as batches:
            return rows, time_steps(phase.compile(), model.fresh_state(0)[0], batches)


def _hours(hours: float, total: int | None, source: str) -> Check:
    source += '; without evaluation and checkpoints'
    if total is None:
        seconds = 3600 * hours / _ASSUMED_STEPS
        source += '; the size of the corpus (see run=corpus) sets the number of steps'
        return Check('hours', OK, f'{seconds:.3g} s a step {source}')
    text = f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.0f} minutes' if hours > 1 / 60 else 'under a minute'
    if hours > _LONG:
        fix = 'use fewer steps, a smaller recipe, or more chips: --config.topology=v5e:4x4 estimates a slice'
        return Check('hours', WARN, f'{text} {source}', fix)
    return Check('hours', OK, f'{text} {source}')
