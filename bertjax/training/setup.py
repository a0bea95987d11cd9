"""The setup of a training: model, objective and optimizer on a mesh, without arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.losses import AUX, Objective
from bertjax.model.row_packing import PackedLayout
from bertjax.model.stacking import init_params
from bertjax.optim.schedules import Schedule, make_schedule
from bertjax.optim.trainable import Selection, partition, select_all
from bertjax.parallel.mesh import describe_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.parallel.zero1 import GradientExchange, is_data_parallel, shard_over_data, should_shard
from bertjax.training.state import EmaTrainState, TrainState, abstract_state, put_params, shardings_of, start_ema


@dataclasses.dataclass(frozen=True)
class PhaseSettings:
    """The settings of a phase, which is a part of the training with one schedule.

    Attributes:
      number: The index of the phase, from 0. Example n is a function of n and this index.
      first_step: The number of steps of the run before the phase.
      last_step: The number of steps of the run at the end of the phase.
      batch_size: Rows per update, over all devices.
      grad_accum_steps: The number of parts of a batch, which are processed one after the other.
      schedule, warmup_fraction, power, decay, decay_fraction: See `optim.schedules.make_schedule`.
      reset_optimizer: Whether the phase begins with a fresh optimizer state.
      layout: The layout of packed sequences if it is the same in every batch, else None.
      schedule_steps: The steps of the run at which the schedule begins and ends, if these settings describe only a part
        of a phase; None for `first_step` and `last_step`.

    Phases with equal `grad_accum_steps`, `layout`, `schedule`, `power`, `decay` and shapes share the compiled step.
    """

    number: int
    first_step: int
    last_step: int
    batch_size: int
    grad_accum_steps: int
    schedule: str
    warmup_fraction: float
    power: float
    decay: str = 'sqrt'
    decay_fraction: float = 0.1
    reset_optimizer: bool = False
    layout: PackedLayout | None = None
    schedule_steps: tuple[int, int] | None = None

    @property
    def phase_steps(self) -> tuple[int, int]:
        """The first and the last step of the whole phase, even if these settings describe only a part of it."""
        return self.schedule_steps or (self.first_step, self.last_step)

    def make_schedule(self, peak: float | np.ndarray) -> Schedule:
        """Makes the schedule of the phase for a peak learning rate."""
        first, last = self.phase_steps
        options = {name: getattr(self, name) for name in ('warmup_fraction', 'power', 'decay', 'decay_fraction')}
        return make_schedule(self.schedule, peak=peak, steps=last - first, first_step=first, **options)


@dataclasses.dataclass(eq=False)
class Setup:
    """The parts of a training that phases with the same objective share. A setup has no arrays.

    Attributes:
      module: The Flax module of the model, which takes `objective.inputs`.
      trained: A function that selects the trained parameters.
      layer_decay: The learning rate factor per layer, see `optim.trainable.layer_rates`.
      ema_decay: The decay of the average of the weights, see `state.update_ema`; 0 for no average.
      teacher: (abstract parameters of the teacher,) if the objective has a `teacher_fn`, else ().
      zero1: Whether to shard the state over the data axis, one of `parallel.zero1.ZERO1`.
      init: key -> fresh state, with boxed parameters (nn.Partitioned).
      state: The abstract state: shapes, dtypes and shardings.
      exchange: The gradient exchange if the state is sharded over the data axis (parallel/zero1.py), else None.
      moment_params: The abstract trained parameters if only their moments are sharded over the data axis, else None.
      compiled: The cached programs of the most recent phases, see `compiled_steps.compile_steps`.
    """

    module: nn.Module
    objective: Objective
    optimizer: optax.GradientTransformation
    mesh: Mesh
    trained: Selection = select_all
    layer_decay: float = 1.0
    ema_decay: float = 0.0
    teacher: tuple[Any, ...] = ()
    zero1: str = 'off'

    def __post_init__(self):
        self.compiled: dict[tuple, Any] = {}
        # `abstract_state` and `create` both use `init`, which is traced only once because it is jitted.
        self.init = jax.jit(self._init, inline=True)
        with mesh_context(self.mesh):
            self.state = abstract_state(self.init, self.mesh)
        self.exchange = self.moment_params = None
        if should_shard(self.zero1, self.mesh):
            if is_data_parallel(self.mesh):
                self.state = jax.tree.map(shard_over_data, self.state)
                self.exchange = GradientExchange(self.state.params, self.module.config.dtype)
            else:
                self.moment_params, _ = partition(self.state.params, self.trained)
                self.state = self.state.replace(opt_state=jax.tree.map(shard_over_data, self.state.opt_state))

    def _init(self, key: jax.Array) -> TrainState:
        params, init_aux = init_params(self.module, key), self.objective.init_aux
        if init_aux is not None:
            params = {**params, AUX: init_aux(jax.random.fold_in(key, 1))}
        trained_params, _ = partition(params, self.trained)
        zero = jnp.zeros([], jnp.int32)
        fields = (zero, params, self.optimizer.init(trained_params), zero, zero)
        return EmaTrainState(*fields, start_ema(params)) if self.ema_decay else TrainState(*fields)

    def describe(self) -> str:
        """Describes the devices and the arrays that are sharded over the data axis."""
        sharded = 'parameters and optimizer' if self.exchange is not None and self.exchange.is_sharded else ''
        sharded = 'the optimizer' if self.moment_params is not None else sharded
        return describe_mesh(self.mesh) + (f', each device keeps a shard of {sharded}' if sharded else '')

    @functools.cached_property
    def create(self) -> Callable[[int], TrainState]:
        """A function from a seed to the state of step 0. Each device initializes its shard."""
        create = jax.jit(lambda key: nn.unbox(self.init(key)), out_shardings=shardings_of(self.state))
        return lambda seed: create(jax.random.key(seed))

    def create_from(self, params: Mapping[str, Any], seed: int) -> TrainState:
        """Creates the state of step 0 from model parameters in the model's tree: host arrays, or donated device arrays.

        Only the parameters of the objective are random. `create` gives them the same values for the same seed.
        """
        return self._create_around(put_params(params, self.state), jax.random.key(seed))

    @functools.cached_property
    def _create_around(self) -> Callable[[Any, jax.Array], TrainState]:
        """A function (model parameters, key) -> the state of step 0. It donates the parameters."""

        def create(params: Any, key: jax.Array) -> TrainState:
            state = nn.unbox(self.init(key))  # JAX leaves out the computation of the parameters that are not used
            return state.with_params({**state.params, **params})

        return jax.jit(create, donate_argnums=0, out_shardings=shardings_of(self.state))

    @functools.cached_property
    def reset_optimizer(self) -> Callable[[TrainState], TrainState]:
        """A function that replaces the optimizer state of a TrainState (donated) by a fresh one."""
        return jax.jit(
            lambda state: state.replace(opt_state=self.optimizer.init(partition(state.params, self.trained)[0])),
            donate_argnums=0,
            out_shardings=shardings_of(self.state),
        )
