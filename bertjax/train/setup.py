"""What is trained, before there is any array: model, objective and optimiser on a mesh, and the step they make."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.data.batch import BatchSpec
from bertjax.losses import AUX, Objective
from bertjax.model.groups import Groups
from bertjax.optim.selection import Selection, partition, select_all
from bertjax.parallel.mesh import describe_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.parallel.zero1 import GradientExchange, ShardedMoments, is_data_parallel, shard_over_data, should_shard
from bertjax.train.compiled_steps import CompiledSteps, SplitStep, StepLowering
from bertjax.train.state import (
    TrainState,
    abstract_state,
    fresh_state,
    init_aux_params,
    make_init,
    put_params,
    shardings_of,
)


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
      groups: how the encoder computes the rows of a batch, see `step.make_gradients`.
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
    groups: Groups | None = None


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
      teacher: (its parameters, abstract,) where the objective has a teacher_fn: no part of the state, and never changed.
      exchange: where the state is spread over the data axis (ZeRO-1, see parallel/zero1.py).
      parts: where its moments alone are.
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
    exchange: GradientExchange | None = None
    parts: ShardedMoments | None = None

    def describe(self) -> str:
        """The devices in words, and who keeps the state."""
        kept = 'parameters and optimiser' if self.exchange is not None and self.exchange.should_shard else ''
        kept = 'the optimiser' if self.parts is not None else kept
        return describe_mesh(self.mesh) + (f', each keeps its part of {kept}' if kept else '')

    def create(self, seed: int) -> TrainState:
        """The state of step 0; each device draws its own part of it."""
        return self._create(jax.random.key(seed))

    @functools.cached_property
    def _create(self) -> Callable[[jax.Array], TrainState]:
        return jax.jit(lambda key: nn.unbox(self.init(key)), out_shardings=shardings_of(self.state))

    def create_from(self, params: Mapping[str, Any], seed: int) -> TrainState:
        """The state of step 0 with these parameters of the model, host arrays in its tree; only those of the objective
        are drawn, as `create` draws them."""
        placed = put_params(params, self.state)
        state = self._create_around(placed, jax.random.key(seed))
        return state.replace(params={**placed, **state.params})

    @functools.cached_property
    def _create_around(self) -> Callable[[Any, jax.Array], TrainState]:
        """What a fresh state has beside the given parameters of the model, with those of the objective alone."""
        init_aux, own = self.objective.init_aux, {AUX: self.state.params[AUX]} if AUX in self.state.params else {}

        def create(params: Any, key: jax.Array) -> TrainState:
            drawn = nn.unbox(init_aux_params(init_aux, key)) if own else {}
            return fresh_state(self.optimizer, {**params, **drawn}, self.trained).replace(params=drawn)

        return jax.jit(create, out_shardings=shardings_of(self.state.replace(params=own)))

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

    def compile(self, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0) -> CompiledSteps:
        """The programs of a phase, compiled when they are asked for; asked for again, the same ones.

        `batches` are told apart by their lengths. On a single CPU several lengths share the program of the update.
        """
        key = (phase, tuple(batches), members)
        if key not in self._programs:
            self._programs.clear()  # those of an earlier phase would stay in the devices' memory
            lowering = StepLowering(self, phase, members)
            on_cpu = self.mesh.devices.flat[0].platform == 'cpu'
            shared = on_cpu and self.mesh.size == 1 and len(batches) > 1
            lower = SplitStep(lowering, batches) if shared else lambda length: lowering.whole(batches[length])
            self._programs[key] = CompiledSteps(lower, batches, side_by_side=not on_cpu)
        return self._programs[key]

    @functools.cached_property
    def _programs(self) -> dict[tuple, CompiledSteps]:
        return {}

    def lower(
        self, phase: PhaseSettings, batches: Mapping[int, BatchSpec], *, members: int = 0
    ) -> dict[int, jax.stages.Lowered]:
        """The whole train step of a phase, lowered for every shape of batch.

        Args:
          phase: whose step it is.
          batches: {padded length S: shapes and dtypes of a batch of one run}.
          members: see `StepLowering`.
        """
        lowering = StepLowering(self, phase, members)
        return {length: lowering.whole(batch) for length, batch in batches.items()}


def build_setup(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    batch: BatchSpec,
    *,
    trained: Selection = select_all,
    layer_decay: float = 1.0,
    teacher: tuple[Any, ...] = (),
    zero1: str = 'off',
) -> Setup:
    """Shapes, then shardings; no arrays yet. `batch` is any batch of the run: its rows and length do not matter.

    `zero1`, one of `parallel.spread.ZERO1`: whether the state is spread over the data axis.
    """
    inputs = [jax.ShapeDtypeStruct(*batch[name]) for name in objective.inputs]
    init = make_init(model, optimizer, inputs, trained, objective.init_aux)
    with mesh_context(mesh):
        state = abstract_state(init, mesh)
    exchange = parts = None
    if should_shard(zero1, mesh):
        if is_data_parallel(mesh):
            state = jax.tree.map(shard_over_data, state)
            exchange = GradientExchange(state.params, model.config.dtype)
        else:
            parts = ShardedMoments(partition(state.params, trained)[0])
            state = state.replace(opt_state=jax.tree.map(shard_over_data, state.opt_state))
    return Setup(model, objective, optimizer, mesh, trained, layer_decay, init, state, teacher, exchange, parts)
