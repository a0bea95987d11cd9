"""What a pre-training would need: whether its step fits, here or on a TPU slice, how long it takes, what it writes."""

import dataclasses
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import Mesh

from bertjax.config.run import RunKeys
from bertjax.cost.memory_search import MemorySearch
from bertjax.doctor.check import FAIL, OK, WARN, Check, looking_at
from bertjax.doctor.machine import gib, room
from bertjax.model.config import BertConfig, parameter_count, train_flops_per_sequence
from bertjax.parallel.devices import device_memory
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingPhase, PretrainingSettings
from bertjax.train.settings import check_row_count

_CPU_FLOPS = 3e11  # of a step that is measured on a CPU: seconds
_TIMED = 3  # steps
_LONG = 30 * 24  # hours
_UNKNOWN = 1_000_000  # steps, where the corpus tells how many: for the phases' shares


@looking_at('disk')
def disk(settings: RunKeys, model: BertConfig, folder: pathlib.Path) -> Iterator[Check]:
    """Whether what a run writes finds room."""
    weights = parameter_count(model) * jnp.dtype(model.param_dtype).itemsize
    # Beside those that are kept the best one, and the one that is being written.
    more = settings.checkpoint_keep
    exported = {'export': weights * len(settings.formats)} if settings.formats else {}
    yield from room(folder, {'two checkpoints': 6 * weights, f'{more} more': 3 * weights * more, **exported})


@looking_at('config')
def config(settings: PretrainingSettings) -> Iterator[Check]:
    """Whether its values go together, apart from the text and the machine."""
    settings.check()
    model = settings.model_config(settings.vocab.size)
    sizes = f'{model.num_layers} layers of width {model.width}, {parameter_count(model):,} parameters'
    yield Check('config', OK, f'{sizes} with a vocabulary of {settings.vocab.size:,}')


@looking_at('memory')
def on_slice(settings: PretrainingSettings, done: int, total: int | None) -> Iterator[Check]:
    """Compiled for config.topology: whether each phase fits, and an estimate of the hours from step `done` of `total`
    on; None where the corpus tells how many there are."""
    fitting, hours, known = MemorySearch(settings, settings.topology), 0.0, True
    for phase in _ahead(settings, done, total):
        result = fitting.compile(phase)
        needed, there = result['hbm_bytes_per_chip'], result['hbm_bytes_available']
        found = f'phase {phase.number}, {phase.batch_size} x {phase.seq_len} on {settings.topology}: '
        found += f'{gib(needed) if needed else "more"} a chip of {gib(there)}'
        if not result['fits']:
            yield Check('memory', FAIL, f'{found}, which does not fit', '--config.run=compile says what would')
        else:
            yield Check('memory', OK, found)
        seconds = result['estimated_step_s']
        known &= seconds is not None
        hours += _steps(phase, done) * (seconds or 0.0) / 3600
    if known:
        yield hours_of(hours, total, f'by the compiler for {settings.topology}')


@looking_at('memory')
def here(settings: PretrainingSettings, vocab_size: int, done: int, total: int | None) -> Iterator[Check]:
    """On the devices of this machine: memory, and the hours by some steps that are measured; see `on_slice`."""
    mesh, model = make_mesh(settings.mesh_axes), settings.model_config(vocab_size)
    for phase in _ahead(settings, 0, total):
        key = settings.given_phases[phase.number].keys['batch_size']
        check_row_count(phase.batch_size, phase.accumulate, row_shards(mesh), key)
    settings.check_memory(mesh)
    state = 4 * parameter_count(model) * jnp.dtype(model.param_dtype).itemsize
    device, on_cpu = device_memory(mesh), mesh.devices.flat[0].platform == 'cpu'
    free = psutil.virtual_memory().available if on_cpu else device
    found = f'weights, at most two moments, and gradients {gib(state)}; {gib(device)} a device'
    if on_cpu and 2 * state > free:
        fix = 'end other programs, or choose a smaller model'
        yield Check('memory', WARN, f'{found}, of which {gib(free)} are free: nothing is measured', fix)
        return
    yield Check('memory', OK, found)
    setup = build_pretraining_setup(settings, model, mesh)
    hours, parts = 0.0, []
    for phase in _ahead(settings, done, total):
        rows = _rows(settings, phase, mesh, vocab_size) if on_cpu else phase.batch_size // phase.accumulate
        try:
            seconds = _measure(setup, dataclasses.replace(phase, batch_size=rows, accumulate=1))
        except jax.errors.JaxRuntimeError as error:
            if 'RESOURCE_EXHAUSTED' not in str(error):
                raise
            fix = f'raise config.accumulate above {phase.accumulate}, or set --config.model.remat=full'
            yield Check('memory', FAIL, f'{rows} x {phase.seq_len} at once do not fit a device', fix)
            return
        hours += _steps(phase, done) * seconds * phase.batch_size / rows / 3600
        parts.append(f'{rows} x {phase.seq_len} in {seconds:.3g} s')
    yield hours_of(hours, total, f'by steps measured here, {" and ".join(parts)}')


def steps_of(settings: PretrainingSettings) -> int | None:
    """How many steps the config has; None where that depends on its corpus."""
    by_corpus = settings.epochs > 0 or 'epoch' in str(settings.steps)
    return None if by_corpus else settings.total_steps(None)


def _ahead(settings: PretrainingSettings, done: int, total: int | None) -> list[PretrainingPhase]:
    """The phases that have steps after `done`."""
    return [phase for phase in settings.resolve_phases(total or _UNKNOWN) if _steps(phase, done) > 0]


def _steps(phase: PretrainingPhase, done: int) -> int:
    return phase.last_step - max(done, phase.first_step)


def _rows(settings: PretrainingSettings, phase: PretrainingPhase, mesh: Mesh, vocab_size: int) -> int:
    """As many rows as a CPU computes in some seconds."""
    flops = train_flops_per_sequence(settings.model_config(vocab_size), phase.seq_len, phase.max_predictions)
    shards, most = row_shards(mesh), phase.batch_size // phase.accumulate
    return max(shards, min(most, int(_CPU_FLOPS / flops)) // shards * shards)


def _measure(setup: Any, phase: PretrainingPhase) -> float:
    """Seconds of a step, the least of some, the first left out."""
    (length,) = phase.batches
    program = setup.compile(phase, phase.batches)[length]
    sharding = batch_sharding(setup.mesh)
    # What the numbers are makes no difference to the time.
    batch = {
        name: jax.device_put(np.ones(shape, dtype), sharding) for name, (shape, dtype) in phase.batches[length].items()
    }
    numbers = jax.device_put((np.uint32(0), np.float32(1e-4), np.uint32(0)), replicated(setup.mesh))
    taken = []
    with mesh_context(setup.mesh):
        state = setup.create(0)
        for _ in range(1 + _TIMED):
            began = time.perf_counter()
            state, metrics = program(state, batch, *numbers)
            jax.block_until_ready((state, metrics))
            taken.append(time.perf_counter() - began)
    return min(taken[1:])


def hours_of(hours: float, total: int | None, how: str) -> Check:
    how += '; evaluating and saving not counted'
    if total is None:
        seconds = 3600 * hours / _UNKNOWN
        return Check('hours', OK, f'{seconds:.3g} s a step {how}; how many there are the corpus tells (run=corpus)')
    shown = f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.0f} minutes' if hours > 1 / 60 else 'under a minute'
    if hours > _LONG:
        fix = 'take fewer steps, a smaller recipe, or more chips: --config.topology=v5e:4x4 estimates a slice'
        return Check('hours', WARN, f'{shown} {how}', fix)
    return Check('hours', OK, f'{shown} {how}')
