"""Lowering and compilation of the train step of a phase."""

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.data.batch import BatchSpec
from bertjax.optim.schedules import Schedule, make_schedule
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.train.setup import PhaseSettings, Setup
from bertjax.train.state import TrainState, shardings_of
from bertjax.train.step import Gradients, make_gradients, make_train_step, make_update
from bertjax.train.vmapped_runs import stacked_template

# (state, arrays of a batch, number of its first example, learning rate, dropout seed) -> (state, metrics), compiled.
# The state is donated. If the objective has a teacher_fn, the parameters of the teacher are a sixth argument.
Program = Callable[..., tuple[TrainState, Any]]


class StepLowering:
    """Lowers the train step of a phase, as one program or as two programs for gradients and update.

    Learning rate and dropout seed are arguments, so that runs that differ only in these values share a program.

    Args:
      members: If > 0, the number of runs that the step trains at once. The axis of members is the first axis of states,
        rates and seeds, and the second axis of the arrays of a batch.
    """

    def __init__(self, setup: Setup, phase: PhaseSettings, members: int = 0):
        self._setup, self._phase, self._members = setup, phase, members
        self._schedule_steps = phase.schedule_steps or (phase.first_step, phase.last_step)
        self._mesh = setup.mesh
        self._state = stacked_template(setup.state, members) if members else setup.state

    def step(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Lowers the step as one program for batches of these shapes; `batch` describes the batch of one member."""

        def step(
            state: TrainState, batch: Any, first: jax.Array, rate: jax.Array, seed: jax.Array, *teacher: Any
        ) -> tuple[TrainState, Any]:
            setup, phase = self._setup, self._phase
            return make_train_step(
                setup.module,
                setup.objective,
                setup.optimizer,
                self._schedule(rate),
                first_step=self._schedule_steps[0],
                grad_accum_steps=phase.grad_accum_steps,
                dropout_seed=seed,
                phase=phase.number,
                trained=setup.trained,
                layer_decay=setup.layer_decay,
                ema_decay=setup.ema_decay,
                exchange=setup.exchange,
                parts=setup.parts,
                layout=phase.layout,
            )(state, batch, first, *teacher)

        function = jax.vmap(step, in_axes=(0, 1, None, 0, 0)) if self._members else step
        jitted = jax.jit(function, donate_argnums=0, out_shardings=(shardings_of(self._state), replicated(self._mesh)))
        with mesh_context(self._mesh):
            return jitted.lower(
                self._state,
                self._arrays(batch),
                self._scalar(jnp.uint32, 0),
                self._scalar(jnp.float32, self._members),
                self._scalar(jnp.uint32, self._members),
                *self._setup.teacher,
            )

    def gradients(self, batch: BatchSpec) -> jax.stages.Lowered:
        """Lowers (parameters, arrays of a batch, number of first example, dropout seed, *teacher) -> Gradients."""
        function = jax.vmap(self._gradients, in_axes=(0, 1, None, 0)) if self._members else self._gradients
        with mesh_context(self._mesh):
            return jax.jit(function, out_shardings=replicated(self._mesh)).lower(
                self._state.params,
                self._arrays(batch),
                self._scalar(jnp.uint32, 0),
                self._scalar(jnp.uint32, self._members),
                *self._setup.teacher,
            )

    def update(self, gradients: jax.stages.Lowered) -> jax.stages.Lowered:
        """Lowers (state, Gradients, learning rate) -> (state, metrics), for the output of a lowered `gradients`."""
        function = jax.vmap(self._update) if self._members else self._update
        jitted = jax.jit(function, donate_argnums=0, out_shardings=(shardings_of(self._state), replicated(self._mesh)))
        abstract_gradients = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(self._mesh)), gradients.out_info
        )
        with mesh_context(self._mesh):
            return jitted.lower(self._state, abstract_gradients, self._scalar(jnp.float32, self._members))

    def _gradients(self, params: Any, batch: Any, first: jax.Array, seed: jax.Array, *teacher: Any) -> Gradients:
        setup, phase = self._setup, self._phase
        return make_gradients(
            setup.module,
            setup.objective,
            grad_accum_steps=phase.grad_accum_steps,
            dropout_seed=seed,
            phase=phase.number,
            trained=setup.trained,
            layout=phase.layout,
        )(params, batch, first, *teacher)

    def _update(self, state: TrainState, gradients: Gradients, rate: jax.Array) -> tuple[TrainState, Any]:
        setup = self._setup
        return make_update(
            setup.optimizer,
            self._schedule(rate),
            first_step=self._schedule_steps[0],
            trained=setup.trained,
            layer_decay=setup.layer_decay,
            ema_decay=setup.ema_decay,
            num_layers=setup.module.config.num_layers,
        )(state, gradients)

    def _schedule(self, rate: jax.Array) -> Schedule:
        phase, (first, last) = self._phase, self._schedule_steps
        return make_schedule(
            phase.schedule,
            peak=rate,
            steps=last - first,
            warmup_fraction=phase.warmup_fraction,
            power=phase.power,
            decay=phase.decay,
            decay_fraction=phase.decay_fraction,
        )

    def _scalar(self, dtype: Any, members: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((members,) if members else (), dtype, sharding=replicated(self._mesh))

    def _arrays(self, batch: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            shape = (shape[0], self._members, *shape[1:]) if self._members else shape
            return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self._mesh))

        return {name: array(*spec) for name, spec in batch.items()}


class SplitStep:
    """A step in two programs: gradients for each length, and one update that all lengths share.

    On CPU, the update takes nearly half of the compile time of a step, so it is compiled only once.
    """

    def __init__(self, lowering: StepLowering, batches: Mapping[int, BatchSpec]):
        self._lowering, self._batches = lowering, batches
        self._update: Any = None  # compiled with the first length

    def __call__(self, length: int) -> 'LoweredSplitStep':
        """Lowers the step for this length."""
        return LoweredSplitStep(self._lowering.gradients(self._batches[length]), self._compile_update)

    def _compile_update(self, gradients: jax.stages.Lowered) -> Any:
        if self._update is None:
            self._update = self._lowering.update(gradients).compile()
        return self._update


class LoweredSplitStep:
    """A lowered step in two programs. Like `jax.stages.Lowered`, it has a method `compile`."""

    def __init__(self, gradients: jax.stages.Lowered, update: Callable[[jax.stages.Lowered], Any]):
        self._gradients, self._update = gradients, update

    def compile(self) -> Program:
        """Compiles the gradients, and also the update unless it is already compiled."""
        gradients, update = self._gradients.compile(), self._update(self._gradients)

        def program(state: TrainState, batch: Any, first: Any, rate: Any, seed: Any, *teacher: Any) -> Any:
            return update(state, gradients(state.params, batch, first, seed, *teacher), rate)

        return program


class CompiledSteps(Mapping[int, Program]):
    """The compiled train step for each padded length. A step is compiled at its first use or earlier.

    Args:
      lower: length -> the lowered step, with a method `compile`.
      lengths: All padded lengths.
      in_parallel: Whether to compile all lengths in parallel at the first use. This suits accelerators, whose host is
        idle. On CPU it would take time and memory from the training, for lengths that a short run may not use; see
        `compile_ahead`.

    Attributes:
      ready: {length: step} for the lengths that have been used.
    """

    def __init__(self, lower: Callable[[int], Any], lengths: Iterable[int], *, in_parallel: bool):
        self._lower, self._lengths, self._in_parallel = lower, tuple(lengths), in_parallel
        self._futures: dict[int, concurrent.futures.Future[Program]] = {}
        self._postponed: list[int] = []
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self.ready: dict[int, Program] = {}

    def compile_ahead(self, lengths: Iterable[int]) -> None:
        """Compiles steps in a background thread, unless steps compile in parallel.

        The first compilation starts now. The others start in `compile_rest`, because on few cores they would delay the
        first step. The program of a step does not depend on when it is compiled.

        Args:
          lengths: The padded lengths in the order of their first use.
        """
        if not self._in_parallel:
            self._postponed = list(lengths)  # never empty, because a finished phase is not started
            self._submit_next()

    def compile_rest(self) -> None:
        """Starts the compilations that `compile_ahead` has postponed."""
        while self._postponed:
            self._submit_next()

    def _submit_next(self) -> None:
        length = self._postponed.pop(0)
        if length not in self.ready and length not in self._futures:
            self._pool = self._pool or concurrent.futures.ThreadPoolExecutor(1)
            self._futures[length] = self._pool.submit(lambda: self._lower(length).compile())

    def stop(self) -> None:
        """Cancels the compilations that have not started."""
        self._postponed = []
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def is_ready(self, length: int) -> bool:
        """Returns whether the step for this length is available without waiting."""
        future = self._futures.get(length)
        return length in self.ready or (future is not None and future.done() and not future.cancelled())

    def __getitem__(self, length: int) -> Program:
        if length not in self.ready:
            if self._in_parallel and not self._futures:
                pool = concurrent.futures.ThreadPoolExecutor()  # XLA releases the GIL
                self._futures = {each: pool.submit(self._lower(each).compile) for each in self._lengths}
                pool.shutdown(wait=False)
            future = self._futures.pop(length, None)
            usable = future is not None and not future.cancelled()
            self.ready[length] = future.result() if usable else self._lower(length).compile()
        return self.ready[length]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lengths)

    def __len__(self) -> int:
        return len(self._lengths)


def compile_steps(
    setup: Setup, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0
) -> CompiledSteps:
    """Returns the steps of a phase, which compile at their first use. The setup caches the steps of its last phase.

    Args:
      batches: {padded length S: shapes and dtypes of a batch of one run}. The lengths are part of the cache key. On a
        single CPU device, several lengths share one update program.
      members: See `StepLowering`.
    """
    key = (phase, tuple(batches), members)
    if key not in setup.compiled:
        setup.compiled.clear()  # programs of an earlier phase would stay in device memory
        lowering = StepLowering(setup, phase, members)
        on_cpu = setup.mesh.devices.flat[0].platform == 'cpu'
        shared = on_cpu and setup.mesh.size == 1 and len(batches) > 1
        lower = SplitStep(lowering, batches) if shared else lambda length: lowering.step(batches[length])
        setup.compiled[key] = CompiledSteps(lower, batches, in_parallel=not on_cpu)
    return setup.compiled[key]


def lower_steps(
    setup: Setup, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0
) -> dict[int, jax.stages.Lowered]:
    """Lowers the train step of a phase as one program for every batch shape; see `compile_steps` for the arguments."""
    lowering = StepLowering(setup, phase, members)
    return {length: lowering.step(batch) for length, batch in batches.items()}
