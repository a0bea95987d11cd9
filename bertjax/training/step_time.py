"""Times the train step of a phase on this machine."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.training.compiled_steps import compile_steps
from bertjax.training.setup import PhaseSettings, Setup

TIMED_STEPS = 3


def time_steps(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, batches: Iterable[Any]) -> float:
    """Runs `1 + TIMED_STEPS` steps, and returns the seconds of the fastest step except the first."""
    seconds = []
    for _, batch in zip(range(1 + TIMED_STEPS), batches, strict=False):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def time_phase(setup: Setup, phase: PhaseSettings, batches: Mapping[int, BatchSpec]) -> float:
    """Compiles the step of a phase, times some steps on a batch of ones, and returns the seconds of the fastest.

    `batches` has one entry, {padded length: shapes and dtypes of a batch}.
    """
    ((length, spec),) = batches.items()
    program = compile_steps(setup, phase, batches)[length]
    sharding = batch_sharding(setup.mesh)
    batch = {name: jax.device_put(np.ones(shape, dtype), sharding) for name, (shape, dtype) in spec.items()}
    numbers = (np.uint32(0), phase.make_schedule(1e-4), np.uint32(0))
    number, *constants = jax.device_put(numbers, replicated(setup.mesh))
    with mesh_context(setup.mesh):
        step = lambda state, batch: program(state, batch, number, *constants)  # noqa: E731
        seconds = time_steps(step, setup.create(0), [batch] * (1 + TIMED_STEPS))
    setup.compiled.clear()  # frees the memory of the program
    return seconds
