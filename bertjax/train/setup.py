"""What is trained, before there is any array: model, objective and optimiser on a mesh, and the step they make."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.data.batch import BatchSpec
from bertjax.losses import Objective
from bertjax.optim.schedules import make_schedule
from bertjax.optim.selection import Selection, everything, partition
from bertjax.parallel.mesh import describe_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.parallel.spread import Exchange, spread, spreads
from bertjax.train.members import members_template
from bertjax.train.state import TrainState, abstract_state, make_init
from bertjax.train.step import make_train_step

# (state, arrays of a batch, number of its first example, learning rate, dropout seed) -> (state, metrics), compiled.
# The state is donated. Where the objective has a guide, the parameters of the teacher are a sixth argument.
Program = Callable[..., tuple[TrainState, Any]]


@dataclasses.dataclass(frozen=True)
class PhaseSettings:
    """A stretch of training with one schedule.

    Attributes:
      number: from 0; part of what example n is a function of.
      first_step: the run's step at which the phase begins.
      last_step: ... and at which it ends.
      batch_size: rows of an update, over all devices.
      accumulate: parts in which a batch is worked through.
      schedule: see `optim.schedules.make_schedule`, as for the next two.
      warmup_fraction: of the phase's steps.
      power: of the polynomial schedule.
      reset_optimizer: whether the phase begins with a fresh optimiser.
    """

    number: int
    first_step: int
    last_step: int
    batch_size: int
    accumulate: int
    schedule: str
    warmup_fraction: float
    power: float
    reset_optimizer: bool = False


@dataclasses.dataclass(frozen=True)
class Setup:
    """The pieces of a training that do not depend on a phase.

    Attributes:
      model: takes `objective.inputs`.
      objective: what it is trained for.
      optimizer: from optim.make_optimizer.
      mesh: the devices of all arrays.
      trained: the parameters that move.
      layer_decay: see `optim.selection.layer_rates`.
      init: key -> fresh state, boxed.
      state: abstract: shapes, dtypes and shardings.
      teacher: (its parameters, abstract,) where the objective has a guide: no part of the state, and never changed.
      exchange: where the state is spread over the data axis (ZeRO-1, see parallel/spread.py).
    """

    model: nn.Module
    objective: Objective
    optimizer: optax.GradientTransformation
    mesh: Mesh
    trained: Selection
    layer_decay: float
    init: Callable[[jax.Array], TrainState]
    state: TrainState
    teacher: tuple[Any, ...] = ()
    exchange: Exchange | None = None

    def describe(self) -> str:
        """The devices in words, and who keeps the state."""
        spread = self.exchange is not None and self.exchange.spreads
        return describe_mesh(self.mesh) + (', each keeps its part of parameters and optimiser' if spread else '')

    def create(self, seed: int) -> TrainState:
        """The state of step 0; each device draws its own part of it."""
        return self._create(jax.random.key(seed))

    @functools.cached_property
    def _create(self) -> Callable[[jax.Array], TrainState]:
        return jax.jit(lambda key: nn.unbox(self.init(key)), out_shardings=shardings_of(self.state))

    def reset_optimizer(self, state: TrainState) -> TrainState:
        """`state` (donated) with a fresh optimiser, on the same devices."""
        return self._reset_optimizer(state)

    @functools.cached_property
    def _reset_optimizer(self) -> Callable[[TrainState], TrainState]:
        return jax.jit(
            lambda state: state.replace(opt_state=self.optimizer.init(partition(state.params, self.trained)[0])),
            donate_argnums=0,
            out_shardings=shardings_of(self.state),
        )

    def compile(self, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0) -> 'Programs':
        """The programs of `lower`, compiled when they are asked for; asked for again, the same ones.

        `batches` are told apart by their lengths.
        """
        key = (phase, tuple(batches), members)
        if key not in self._programs:
            self._programs.clear()  # those of an earlier phase would stay in the devices' memory
            lower = lambda length: self.lower(phase, {length: batches[length]}, members=members)[length]  # noqa: E731
            side_by_side = self.mesh.devices.flat[0].platform != 'cpu'
            self._programs[key] = Programs(lower, batches, side_by_side=side_by_side)
        return self._programs[key]

    @functools.cached_property
    def _programs(self) -> dict[tuple, 'Programs']:
        return {}

    def lower(self, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0) -> dict[int, Any]:
        """The train step of a phase, lowered for every shape of batch.

        Learning rate and dropout seed are arguments of the step: one program serves every run that differs in them.

        Args:
          phase: whose step it is.
          batches: {padded length S: shapes and dtypes of a batch of one run}.
          members: above 0, the step of so many runs at once: states, rates and seeds have the members as a first axis,
            the arrays of a batch as a second.
        """

        def step(
            state: TrainState,
            batch: Mapping[str, jax.Array],
            first: jax.Array,
            rate: jax.Array,
            seed: jax.Array,
            *teacher: Any,
        ) -> Any:
            schedule = make_schedule(
                phase.schedule,
                peak=rate,
                steps=phase.last_step - phase.first_step,
                warmup_fraction=phase.warmup_fraction,
                power=phase.power,
            )
            return make_train_step(
                self.model,
                self.objective,
                self.optimizer,
                schedule,
                first_step=phase.first_step,
                accumulate=phase.accumulate,
                dropout_seed=seed,
                phase=phase.number,
                trained=self.trained,
                layer_decay=self.layer_decay,
                exchange=self.exchange,
            )(state, batch, first, *teacher)

        def scalar(dtype: Any, members: int = members) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((members,) if members else (), dtype, sharding=replicated(self.mesh))

        def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            shape = (shape[0], members, *shape[1:]) if members else shape
            return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self.mesh))

        state = members_template(self.state, members) if members else self.state
        jitted = jax.jit(
            jax.vmap(step, in_axes=(0, 1, None, 0, 0)) if members else step,
            donate_argnums=0,
            out_shardings=(shardings_of(state), replicated(self.mesh)),
        )
        with mesh_context(self.mesh):
            return {
                length: jitted.lower(
                    state,
                    {name: array(*of) for name, of in batch.items()},
                    scalar(jnp.uint32, 0),
                    scalar(jnp.float32),
                    scalar(jnp.uint32),
                    *self.teacher,
                )
                for length, batch in batches.items()
            }


class Programs(Mapping[int, Program]):
    """The train step by padded length, each compiled when it is first asked for.

    Args:
      lower: length -> what is to be compiled (jax.stages.Lowered).
      lengths: all of them.
      side_by_side: begin all with the first: for an accelerator, beside which the host has nothing else to do. On a CPU
        that would cost the training time and memory, for lengths that a short run may never meet.

    Attributes:
      ready: those that were asked for, by length.
    """

    def __init__(self, lower: Callable[[int], Any], lengths: Iterable[int], *, side_by_side: bool):
        self._lower, self._lengths, self._side_by_side = lower, tuple(lengths), side_by_side
        self._begun: dict[int, concurrent.futures.Future[Program]] = {}
        self.ready: dict[int, Program] = {}

    def __getitem__(self, length: int) -> Program:
        if length not in self.ready:
            if self._side_by_side and not self._begun:
                pool = concurrent.futures.ThreadPoolExecutor()  # XLA releases the interpreter's lock
                self._begun = {each: pool.submit(self._lower(each).compile) for each in self._lengths}
                pool.shutdown(wait=False)
            begun = self._begun.get(length)
            self.ready[length] = begun.result() if begun else self._lower(length).compile()
        return self.ready[length]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lengths)

    def __len__(self) -> int:
        return len(self._lengths)


def build_setup(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    batch: BatchSpec,
    *,
    trained: Selection = everything,
    layer_decay: float = 1.0,
    teacher: tuple[Any, ...] = (),
    zero1: str = 'off',
) -> Setup:
    """Shapes, then shardings; no arrays yet. `batch` is any batch of the run: its rows and length do not matter.

    `zero1`, one of `parallel.spread.ZERO1`: whether the state is spread over the data axis.
    """
    inputs = [jax.ShapeDtypeStruct(*batch[name]) for name in objective.inputs]
    init = make_init(model, optimizer, inputs, trained, objective.init_own)
    with mesh_context(mesh):
        state = abstract_state(init, mesh)
    exchange = None
    if spreads(zero1, mesh):
        state = jax.tree.map(spread, state)
        exchange = Exchange(state.params, model.config.dtype)
    return Setup(model, objective, optimizer, mesh, trained, layer_decay, init, state, teacher, exchange)


def shardings_of(state: TrainState) -> Any:
    """The sharding of each leaf."""
    return jax.tree.map(lambda x: x.sharding, state)
