"""Joins model, optimiser, mesh and phases into what the loop runs: shared by the verbs pretrain and compile."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.data.batch import pretraining_batch_spec
from bertjax.losses import PRETRAINING
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.schedules import make_schedule
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.runs._settings import PhaseSettings, rng_impl, seed_of
from bertjax.train.state import TrainState, abstract_state, make_init
from bertjax.train.step import make_train_step


@dataclasses.dataclass(frozen=True)
class Training:
    """The pieces that do not depend on a phase. `state` is abstract: shapes, dtypes and shardings."""

    config: ConfigDict
    mesh: Mesh
    model: BertForPreTraining
    optimizer: optax.GradientTransformation
    init: Callable[[jax.Array], TrainState]
    state: TrainState

    def batch(self, phase: PhaseSettings) -> dict[str, jax.ShapeDtypeStruct]:
        """The abstract batch of a phase."""
        spec = pretraining_batch_spec(phase.batch_size, phase.seq_len, phase.max_predictions)
        sharding = batch_sharding(self.mesh)
        return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in spec.items()}

    def lower(self, phase: PhaseSettings) -> Any:
        """The train step of a phase, lowered for the mesh; `.compile()` it."""
        schedule = make_schedule(
            phase.schedule,
            peak=phase.learning_rate,
            steps=phase.last_step - phase.first_step,
            warmup_fraction=phase.warmup_fraction,
            power=self.config.schedule.power,
        )
        step = make_train_step(
            self.model,
            PRETRAINING,
            self.optimizer,
            schedule,
            first_step=phase.first_step,
            accumulate=phase.accumulate,
            dropout_seed=seed_of(self.config, 'dropout'),
            rng_impl=rng_impl(self.config),
        )
        shardings = jax.tree.map(lambda x: x.sharding, self.state)
        with mesh_context(self.mesh):
            jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(self.mesh)))
            return jitted.lower(self.state, self.batch(phase))

    @functools.cached_property
    def reset_optimizer(self) -> Callable[[TrainState], TrainState]:
        """state -> state with a fresh optimiser, on the same devices."""
        shardings = jax.tree.map(lambda x: x.sharding, self.state)
        return jax.jit(
            lambda state: state.replace(opt_state=self.optimizer.init(state.params)),
            donate_argnums=0,
            out_shardings=shardings,
        )


def build_training(config: ConfigDict, model: BertConfig, mesh: Mesh) -> Training:
    """Shapes, then shardings; no arrays yet."""
    module = BertForPreTraining(model)
    optimizer = make_optimizer(**config.optimizer)
    spec = pretraining_batch_spec(1, config.seq_len, config.max_predictions)
    init = make_init(module, optimizer, [jax.ShapeDtypeStruct(*spec[name]) for name in PRETRAINING.inputs])
    with mesh_context(mesh):
        state = abstract_state(init, mesh)
    return Training(config, mesh, module, optimizer, init, state)
