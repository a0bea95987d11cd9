"""The train step of a task, compiled for each of the padded lengths that its batches have."""

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.data.buckets import BucketedExamples
from bertjax.optim.schedules import make_schedule
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.runs import _settings as settings
from bertjax.runs._tuning import Tuning
from bertjax.train.state import TrainState
from bertjax.train.step import make_train_step
from bertjax.train.together import Step, members_template


def lower_step(tuning: Tuning, batches: Mapping[int, BatchSpec], total: int, *, members: int = 0) -> dict[int, Any]:
    """The step of a run of `total` steps, lowered for every padded length in `batches`.

    Learning rate and dropout seed are arguments of the step: one program serves them all.

    Args:
      tuning: the run.
      batches: {padded length: shapes and dtypes of a batch of one run}.
      total: where the schedule ends.
      members: above 0, the step of so many runs at once.
    """
    config, mesh = tuning.config, tuning.mesh

    def step(state: TrainState, batch: Mapping[str, jax.Array], rate: jax.Array, seed: jax.Array) -> Any:
        schedule = make_schedule(
            config.schedule.name,
            peak=rate,
            steps=total,
            warmup_fraction=config.warmup_fraction,
            power=config.schedule.power,
        )
        one = make_train_step(
            tuning.model,
            tuning.data.task.objective,
            tuning.optimizer,
            schedule,
            first_step=0,
            accumulate=config.accumulate,
            dropout_seed=seed,
            rng_impl=settings.rng_impl(config),
            trained=tuning.trained,
            layer_decay=config.layer_decay,
        )
        return one(state, batch)

    def scalar(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((members,) if members else (), dtype, sharding=replicated(mesh))

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        shape = (shape[0], members, *shape[1:]) if members else shape
        return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(mesh))

    state = members_template(tuning.state, members) if members else tuning.state
    shardings = jax.tree.map(lambda x: x.sharding, state)
    jitted = jax.jit(
        jax.vmap(step, in_axes=(0, 1, 0, 0)) if members else step,
        donate_argnums=0,
        out_shardings=(shardings, replicated(mesh)),
    )
    with mesh_context(mesh):
        return {
            length: jitted.lower(
                state,
                {name: array(*of) for name, of in batch.items()},
                scalar(jnp.float32),
                scalar(jnp.uint32),
            )
            for length, batch in batches.items()
        }


def compile_step(lowered: Mapping[int, Any]) -> Step:
    """Compiles all lengths side by side: XLA gives the interpreter's lock away."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        compiled = dict(zip(lowered, pool.map(lambda one: one.compile(), lowered.values()), strict=True))
    return lambda state, batch, *numbers: compiled[batch['input_ids'].shape[-1]](state, batch, *numbers)


def step_of_run(
    tuning: Tuning, examples: BucketedExamples, total: int
) -> Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, Any]]:
    """(state, batch) -> (state, metrics) of a run by itself, compiled."""
    step = compile_step(lower_step(tuning, examples.abstract_batches(), total))
    seed = settings.seed_of(tuning.config, 'dropout')
    numbers = jax.device_put((np.float32(tuning.config.learning_rate), np.uint32(seed)), replicated(tuning.mesh))
    return lambda state, batch: step(state, batch, *numbers)
