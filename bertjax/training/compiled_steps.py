"""Lowering and compilation of the train step of a phase."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.parallel.mesh import is_cpu
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.training.evaluate import OnCompile
from bertjax.training.setup import PhaseSettings, Setup
from bertjax.training.state import TrainState, shardings_of
from bertjax.training.step import make_gradients, make_train_step, make_update
from bertjax.training.vmapped_runs import stacked_template

# (state, arrays of a batch, number of its first row, schedule, dropout seed) -> (state, metrics), compiled.
# The state is donated. If the objective has a teacher_fn, the parameters of the teacher are a sixth argument.
Program = Callable[..., tuple[TrainState, Any]]


class StepLowering:
    """Lowers the train step of a phase, as one program or as two programs for gradients and update.

    Args:
      members: The number of runs (members) that the step trains together, along the first axis of states, schedules and
        seeds, and along the second axis of the arrays of a batch. 0 stands for one run without these axes.
    """

    def __init__(self, setup: Setup, phase: PhaseSettings, members: int = 0):
        self._setup, self._members = setup, members
        self._options = (phase.grad_accum_steps, phase.layout)
        self._state = stacked_template(setup.state, members) if members else setup.state
        self._replicated = replicated(setup.mesh)
        shape = (members,) if members else ()
        numbers = (np.uint32(0), phase.make_schedule(np.zeros(shape)), np.zeros(shape, np.uint32))
        self._first, self._schedule, self._seed = self._abstract(numbers)

    def step(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Lowers the step as one program. `batch` has the shapes and dtypes of the batch of one member."""
        arguments = (self._state, self._arrays(batch), self._first, self._schedule, self._seed, *self._setup.teacher)
        return self._lower_update(make_train_step(self._setup, *self._options), (0, 1, None, 0, 0), arguments)

    def gradients(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Lowers (parameters, arrays of a batch, number of its first row, dropout seed, *teacher) -> Gradients."""
        arguments = (self._state.params, self._arrays(batch), self._first, self._seed, *self._setup.teacher)
        function = make_gradients(self._setup, *self._options)
        return self._lower(function, (0, 1, None, 0), arguments, out_shardings=self._replicated)

    def update(self, gradients: jax.stages.Lowered) -> jax.stages.Lowered:
        """Lowers (state, Gradients, schedule) -> (state, metrics) for the output of a lowered `gradients`."""
        arguments = (self._state, self._abstract(gradients.out_info), self._schedule)
        return self._lower_update(make_update(self._setup), (0, 0, 0), arguments)

    def _abstract(self, tree: Any) -> Any:
        """Returns replicated abstract arrays with the shapes and dtypes of a tree."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._replicated), tree)

    def _lower_update(self, function: Callable[..., Any], axes: Any, arguments: Any) -> jax.stages.Lowered:
        """Lowers a function of (state, ...) that returns the new state and replicated metrics."""
        shardings = (shardings_of(self._state), self._replicated)
        return self._lower(function, axes, arguments, donate_argnums=0, out_shardings=shardings)

    def _lower(self, function: Callable[..., Any], axes: Any, arguments: Any, **options: Any) -> jax.stages.Lowered:
        """Lowers a function. With members, `axes` are the `in_axes` of `jax.vmap`."""
        function = jax.vmap(function, in_axes=axes) if self._members else function
        with mesh_context(self._setup.mesh):
            return jax.jit(function, **options).lower(*arguments)

    def _arrays(self, batch: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            shape = (shape[0], self._members, *shape[1:]) if self._members else shape
            return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self._setup.mesh))

        return {name: array(*spec) for name, spec in batch.items()}


def lower_in_two(lowering: StepLowering, batches: Mapping[int, BatchSpec]) -> Callable[[int], Callable[[], Program]]:
    """Returns `lower` of `CompiledSteps` for steps of two programs: gradients and update. All lengths share the update.

    On CPU, the update takes nearly half of the compile time of a step.
    """
    updates: list[Any] = []  # contains the compiled update after the first use

    def lower(length: int) -> Callable[[], Program]:
        lowered = lowering.gradients(batches[length])

        def compile_both() -> Program:
            gradients = lowered.compile()
            if not updates:
                updates.append(lowering.update(lowered).compile())

            def program(state: TrainState, batch: Any, first: Any, schedule: Any, seed: Any, *teacher: Any) -> Any:
                return updates[0](state, gradients(state.params, batch, first, seed, *teacher), schedule)

            return program

        return compile_both

    return lower


class CompiledSteps:
    """The compiled train step for each padded length. Threads compile a step at its first use or earlier.

    Args:
      lower: length -> a function that compiles the lowered step.
      in_parallel: Whether to compile all lengths in parallel at the first use of a step. This suits accelerators,
        because their host is idle. On CPU, use `compile_ahead`, because parallel compilation would slow the training,
        and a short run may not use all lengths.
    """

    def __init__(self, lower: Callable[[int], Callable[[], Program]], lengths: Iterable[int], *, in_parallel: bool):
        self._lower, self.lengths, self._in_parallel = lower, tuple(lengths), in_parallel
        self._futures: dict[int, concurrent.futures.Future[Program]] = {}
        self._postponed: list[int] = []
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def compile_ahead(self, lengths: Iterable[int]) -> None:
        """Compiles steps in the background; does nothing if `in_parallel`.

        `lengths` are in the order of their first use. The first compilation starts now. The others start in
        `compile_rest`, because on few cores they would delay the first step. The program does not depend on when it is
        compiled.
        """
        if not self._in_parallel:
            first, *self._postponed = lengths  # not empty: the phase has steps left
            self._submit([first])

    def compile_rest(self) -> None:
        """Starts the compilations that `compile_ahead` has postponed."""
        self._submit(self._postponed)
        self._postponed = []

    def _submit(self, lengths: Iterable[int]) -> None:
        for length in lengths:
            if length not in self._futures:
                # For accelerators, this thread lowers: errors are raised early, and the caller's JAX contexts apply.
                job = self._lower(length) if self._in_parallel else lambda length=length: self._lower(length)()
                # Threads run in parallel, because XLA releases the GIL.
                self._pool = self._pool or concurrent.futures.ThreadPoolExecutor(None if self._in_parallel else 1)
                self._futures[length] = self._pool.submit(job)

    def stop(self) -> None:
        """Cancels the compilations that have not started."""
        self._postponed = []
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._futures = {length: future for length, future in self._futures.items() if not future.cancelled()}

    def is_ready(self, length: int) -> bool:
        """Returns whether the step for this length is available without waiting."""
        return length in self._futures and self._futures[length].done()

    def program(self, length: int, on_compile: OnCompile = contextlib.nullcontext) -> Program:
        """Returns the step for this length. If it is not available yet, waits for it in the context `on_compile`."""
        number = 1 + sum(map(self.is_ready, self.lengths))
        what = f'length {length} ({number} of {len(self.lengths)})'
        with contextlib.nullcontext() if self.is_ready(length) else on_compile(what):
            self._submit(self.lengths if self._in_parallel else [length])
            return self._futures[length].result()

    def __getitem__(self, length: int) -> Program:
        return self.program(length)


def compile_steps(
    setup: Setup, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0
) -> CompiledSteps:
    """Returns the steps of a phase; see `CompiledSteps`. The setup caches them until a phase needs other steps.

    Args:
      batches: {padded length: shapes and dtypes of a batch of one run}. On a single CPU device, several lengths share
        one update program.
      members: See `StepLowering`.
    """
    shapes = tuple((length, *spec.items()) for length, spec in batches.items())
    key = (phase.grad_accum_steps, phase.layout, jax.tree.structure(phase.make_schedule(0.0)), shapes, members)
    if key not in setup.compiled:
        setup.compiled.clear()  # else, programs of an earlier phase would stay in device memory
        lowering = StepLowering(setup, phase, members)
        on_cpu = is_cpu(setup.mesh)
        shared = on_cpu and setup.mesh.size == 1 and len(batches) > 1
        lower = lower_in_two(lowering, batches) if shared else lambda length: lowering.step(batches[length]).compile
        setup.compiled[key] = CompiledSteps(lower, batches, in_parallel=not on_cpu)
    return setup.compiled[key]
