"""The train step of a phase on its way through the compiler: what is lowered, and when it is compiled."""

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bertjax.data.batch import BatchSpec
from bertjax.optim.schedules import Schedule, make_schedule
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.train.state import TrainState, shardings_of
from bertjax.train.step import Gradients, make_gradients, make_train_step, make_update
from bertjax.train.vmapped_runs import stacked_template

if TYPE_CHECKING:
    from bertjax.train.setup import PhaseSettings, Setup

# (state, arrays of a batch, number of its first example, learning rate, dropout seed) -> (state, metrics), compiled.
# The state is donated. Where the objective has a teacher_fn, the parameters of the teacher are a sixth argument.
Program = Callable[..., tuple[TrainState, Any]]


class StepLowering:
    """The step of a phase, lowered: whole, or gradients and update apart.

    Learning rate and dropout seed are arguments: one program serves every run that differs in them.

    Args:
      setup: of the run.
      phase: whose step it is.
      members: above 0, the step of so many runs at once: states, rates and seeds have the members as a first axis, the
        arrays of a batch as a second.
    """

    def __init__(self, setup: 'Setup', phase: 'PhaseSettings', members: int = 0):
        self._setup, self._phase, self._members = setup, phase, members
        self._mesh = setup.mesh
        self._state = stacked_template(setup.state, members) if members else setup.state

    def whole(self, batch: BatchSpec) -> jax.stages.Lowered:
        """The step for batches of these shapes; of one run, also where there are several."""

        def step(
            state: TrainState, batch: Any, first: jax.Array, rate: jax.Array, seed: jax.Array, *teacher: Any
        ) -> tuple[TrainState, Any]:
            setup, phase = self._setup, self._phase
            return make_train_step(
                setup.model,
                setup.objective,
                setup.optimizer,
                self._schedule(rate),
                first_step=phase.first_step,
                accumulate=phase.accumulate,
                dropout_seed=seed,
                phase=phase.number,
                trained=setup.trained,
                layer_decay=setup.layer_decay,
                exchange=setup.exchange,
                parts=setup.parts,
                layout=phase.layout,
            )(state, batch, first, *teacher)

        each = jax.vmap(step, in_axes=(0, 1, None, 0, 0)) if self._members else step
        jitted = jax.jit(each, donate_argnums=0, out_shardings=(shardings_of(self._state), replicated(self._mesh)))
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
        """(parameters, arrays of a batch, number of its first example, dropout seed, *teacher) -> Gradients."""
        each = jax.vmap(self._gradients, in_axes=(0, 1, None, 0)) if self._members else self._gradients
        with mesh_context(self._mesh):
            return jax.jit(each, out_shardings=replicated(self._mesh)).lower(
                self._state.params,
                self._arrays(batch),
                self._scalar(jnp.uint32, 0),
                self._scalar(jnp.uint32, self._members),
                *self._setup.teacher,
            )

    def update(self, gradients: jax.stages.Lowered) -> jax.stages.Lowered:
        """(state, Gradients, learning rate) -> (state, metrics), for what any lowered `gradients` gives."""
        each = jax.vmap(self._update) if self._members else self._update
        jitted = jax.jit(each, donate_argnums=0, out_shardings=(shardings_of(self._state), replicated(self._mesh)))
        found = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(self._mesh)), gradients.out_info
        )
        with mesh_context(self._mesh):
            return jitted.lower(self._state, found, self._scalar(jnp.float32, self._members))

    def _gradients(self, params: Any, batch: Any, first: jax.Array, seed: jax.Array, *teacher: Any) -> Gradients:
        setup, phase = self._setup, self._phase
        return make_gradients(
            setup.model,
            setup.objective,
            accumulate=phase.accumulate,
            dropout_seed=seed,
            phase=phase.number,
            trained=setup.trained,
            layout=phase.layout,
        )(params, batch, first, *teacher)

    def _update(self, state: TrainState, found: Gradients, rate: jax.Array) -> tuple[TrainState, Any]:
        setup = self._setup
        return make_update(
            setup.optimizer,
            self._schedule(rate),
            first_step=self._phase.first_step,
            trained=setup.trained,
            layer_decay=setup.layer_decay,
            num_layers=setup.model.config.num_layers,
        )(state, found)

    def _schedule(self, rate: jax.Array) -> Schedule:
        phase = self._phase
        return make_schedule(
            phase.schedule,
            peak=rate,
            steps=phase.last_step - phase.first_step,
            warmup_fraction=phase.warmup_fraction,
            power=phase.power,
        )

    def _scalar(self, dtype: Any, members: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((members,) if members else (), dtype, sharding=replicated(self._mesh))

    def _arrays(self, batch: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            shape = (shape[0], self._members, *shape[1:]) if self._members else shape
            return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self._mesh))

        return {name: array(*of) for name, of in batch.items()}


class SplitStep:
    """Gradients for each length and one update for all, which need not be compiled again with every length.

    Of what a CPU compiles of a step nearly half is the update.
    """

    def __init__(self, lowering: StepLowering, batches: Mapping[int, BatchSpec]):
        self._lowering, self._batches = lowering, batches
        self._update: Any = None  # compiled with the first length

    def __call__(self, length: int) -> 'LoweredSplitStep':
        """What is still to be compiled for this length."""
        return LoweredSplitStep(self._lowering.gradients(self._batches[length]), self._shared)

    def _shared(self, gradients: jax.stages.Lowered) -> Any:
        if self._update is None:
            self._update = self._lowering.update(gradients).compile()
        return self._update


class LoweredSplitStep:
    """A step in two programs, as `jax.stages.Lowered` is one: it compiles to a `Program`."""

    def __init__(self, gradients: jax.stages.Lowered, update: Callable[[jax.stages.Lowered], Any]):
        self._gradients, self._update = gradients, update

    def compile(self) -> Program:
        """Both, or the gradients alone where the update is there."""
        gradients, update = self._gradients.compile(), self._update(self._gradients)

        def program(state: TrainState, batch: Any, first: Any, rate: Any, seed: Any, *teacher: Any) -> Any:
            return update(state, gradients(state.params, batch, first, seed, *teacher), rate)

        return program


class CompiledSteps(Mapping[int, Program]):
    """The train step by padded length, each compiled when it is first asked for, or before.

    Args:
      lower: length -> what is to be compiled: it has a method `compile`.
      lengths: all of them.
      side_by_side: begin all with the first: for an accelerator, beside which the host has nothing else to do. On a CPU
        that would cost the training time and memory, for lengths that a short run may never meet: see `begin`.

    Attributes:
      ready: those that were asked for, by length.
    """

    def __init__(self, lower: Callable[[int], Any], lengths: Iterable[int], *, side_by_side: bool):
        self._lower, self._lengths, self._side_by_side = lower, tuple(lengths), side_by_side
        self._begun: dict[int, concurrent.futures.Future[Program]] = {}
        self._waiting: list[int] = []
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self.ready: dict[int, Program] = {}

    def begin(self, lengths: Iterable[int]) -> None:
        """Compiles these in a thread beside the caller, in this order: that in which they will be met.

        Which program a step runs does not depend on when it was compiled. The first is begun now, the others by
        `go_on`: where a core is scarce they would keep the first step waiting.
        """
        if not self._side_by_side:
            self._waiting = list(lengths)  # never empty: a phase that is done is not begun
            self._begin_next()

    def go_on(self) -> None:
        """Begins what `begin` has left for later."""
        while self._waiting:
            self._begin_next()

    def _begin_next(self) -> None:
        length = self._waiting.pop(0)
        if length not in self.ready and length not in self._begun:
            self._pool = self._pool or concurrent.futures.ThreadPoolExecutor(1)
            self._begun[length] = self._pool.submit(lambda: self._lower(length).compile())

    def stop(self) -> None:
        """Gives up what was not come to yet."""
        self._waiting = []
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def there(self, length: int) -> bool:
        """Whether it can be had without waiting."""
        begun = self._begun.get(length)
        return length in self.ready or (begun is not None and begun.done() and not begun.cancelled())

    def __getitem__(self, length: int) -> Program:
        if length not in self.ready:
            if self._side_by_side and not self._begun:
                pool = concurrent.futures.ThreadPoolExecutor()  # XLA releases the interpreter's lock
                self._begun = {each: pool.submit(self._lower(each).compile) for each in self._lengths}
                pool.shutdown(wait=False)
            begun = self._begun.pop(length, None)
            usable = begun is not None and not begun.cancelled()
            self.ready[length] = begun.result() if usable else self._lower(length).compile()
        return self.ready[length]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lengths)

    def __len__(self) -> int:
        return len(self._lengths)
