"""The functions to compile: the train step, and the evaluation of one batch."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from bertjax.losses import AUX, Objective
from bertjax.model.capture import apply_capturing
from bertjax.model.dropout import Dropout
from bertjax.model.row_packing import PackedLayout
from bertjax.optim.schedules import Schedule
from bertjax.optim.trainable import combine, layer_rates, partition
from bertjax.parallel.partition import platform
from bertjax.parallel.zero1 import AXIS, shard_like_moments
from bertjax.training.setup import Setup
from bertjax.training.state import TrainState, update_ema
from bertjax.training.whole_batch import sum_over_parts, whole_batch_gradients

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
LossAndGradients = tuple[tuple[jax.Array, Sums], Any]  # (loss, sums), gradients
Metrics = dict[str, Any]


class Gradients(struct.PyTreeNode):
    """The gradients and metrics of a batch.

    Attributes:
      grads: The gradients, in the tree of the trained parameters.
      loss: float32 scalar, the minimized loss.
      sums: {name: (sum, weight)} of the losses and accuracies; sum / weight is the mean.
      counts: {name: int32 scalar}: `tokens` without padding and, for packed rows, `sequences`.
    """

    grads: Any
    loss: jax.Array
    sums: Sums
    counts: dict[str, jax.Array]


def make_train_step(
    setup: Setup, grad_accum_steps: int = 1, layout: PackedLayout | None = None
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Makes a train step to be jitted: (state, batch, first, schedule, seed, *teacher) -> (new state, metrics).

    `schedule` gives the learning rate. See `make_gradients` for the other arguments. The metrics are `sums`, {name:
    (sum, weight)}, and `scalars`, {name: float32 or int32}.
    """
    gradients, update = make_gradients(setup, grad_accum_steps, layout), make_update(setup)

    def step(
        state: TrainState, batch: Batch, first: jax.Array, schedule: Schedule, seed: jax.Array, *teacher: Any
    ) -> tuple[TrainState, Metrics]:
        return update(state, gradients(state.params, batch, first, seed, *teacher), schedule)

    return step


def make_gradients(
    setup: Setup, grad_accum_steps: int = 1, layout: PackedLayout | None = None
) -> Callable[..., Gradients]:
    """Makes a function: (params, batch, first, seed, *teacher) -> Gradients.

    `first` is the number of the first row of the batch, and `seed` the dropout seed of the phase; both are uint32
    scalars. `teacher` has the teacher's parameters if the objective has a `teacher_fn`, else it is empty. See
    `PhaseSettings` for `grad_accum_steps` and `layout`.

    The `grad_accum_steps` parts of a batch are processed one after the other. Their gradients add up to the gradients
    of the batch, because each loss is divided by the weight of the whole batch. With `setup.exchange`, each device
    computes the gradients of its rows and receives the summed gradients of its shard of the parameters.
    """
    objective, trained, exchange = setup.objective, setup.trained, setup.exchange
    module = setup.module if layout is None else setup.module.clone(packing=layout)
    specs = None if exchange is None else partition(exchange.specs, trained)[0]

    def local_gradients(
        params: Any, batch: Batch, seed: jax.Array, weights: Mapping[str, jax.Array], *teacher: Any
    ) -> LossAndGradients:
        """Computes the contribution of `batch` to the loss and to the gradients.

        The gradients have the dtypes of the parameters. `weights` are float32 scalars, the weights of the losses in the
        whole batch.
        """
        stored, _ = partition(params, trained)
        trained_params, frozen = partition(exchange.gather(params) if exchange else params, trained)

        def forward(trained_params: Any, rows: Batch) -> Any:
            dropout = Dropout(seed, rows['example_ids'])
            return _apply(module, objective, combine(trained_params, frozen), rows, dropout=dropout)

        def loss(outputs: Any, rows: Batch) -> tuple[jax.Array, Sums]:
            sums, total = objective.losses(outputs, rows), 0
            # A weight can be 0, for example in a batch of padding.
            divisors = {name: jnp.where(weight > 0, weight, 1.0) for name, weight in weights.items()}
            for name, divisor in divisors.items():
                if name in sums:
                    mean = sums[name][0] / divisor
                    total += objective.factors[name] * mean if name in objective.factors else mean
            return total, sums

        def gradients(rows: Batch) -> LossAndGradients:
            if objective.whole_batch:
                compared = {name: x for name, x in rows.items() if name not in (*objective.inputs, 'example_ids')}
                arguments = (trained_params, rows, compared, grad_accum_steps, exchange is not None)
                losses, grads = whole_batch_gradients(forward, loss, *arguments)
            else:
                rows = with_teacher_outputs(objective, rows, *teacher)
                losses, grads = jax.value_and_grad(lambda x: loss(forward(x, rows), rows), has_aux=True)(trained_params)
            # Kernels may be gathered in bfloat16, but the sum over the parts has the dtype of the parameters.
            return losses, jax.tree.map(lambda g, x: g.astype(x.dtype), grads, stored)

        return gradients(batch) if objective.whole_batch else sum_over_parts(gradients, batch, grad_accum_steps)

    def device_gradients(params: Any, batch: Batch, *values: Any) -> LossAndGradients:
        losses, grads = local_gradients(params, batch, *values)
        # If the loss compares the rows of the batch, each device already has the sums over all rows.
        return losses if objective.whole_batch else jax.lax.psum(losses, AXIS), exchange.reduce_scatter(grads, specs)

    def batch_gradients(params: Any, batch: Batch, first: jax.Array, seed: jax.Array, *teacher: Any) -> Gradients:
        example_ids = first + jnp.arange(len(batch['attention_mask']), dtype=jnp.uint32)  # [B]
        compute = exchange.over_devices(device_gradients, specs, 2 + len(teacher)) if exchange else local_gradients
        rows = {**batch, 'example_ids': example_ids}
        (loss, sums), grads = compute(params, rows, seed, objective.weights(batch), *teacher)
        counts = {'tokens': batch['attention_mask'].sum()}
        if 'sequence_ids' in batch:  # packed rows hold several sequences
            counts['sequences'] = batch['sequence_ids'].max(-1).sum()
        return Gradients(grads, loss, sums, counts)

    return batch_gradients


def make_update(setup: Setup) -> Callable[..., tuple[TrainState, Metrics]]:
    """Makes a function: (state, Gradients, Schedule) -> (new state, metrics), independent of the batch shape.

    If the loss, the gradient norm or the square of the update norm is not finite, the update changes only `step` and
    the counters of skipped steps.
    """
    optimizer, moment_params = setup.optimizer, setup.moment_params

    def update(state: TrainState, gradients: Gradients, schedule: Schedule) -> tuple[TrainState, Metrics]:
        old, frozen = partition(state.params, setup.trained)
        grads = gradients.grads
        grad_norm = optax.tree.norm(grads)
        if moment_params is not None:
            grads, old = (shard_like_moments(tree, moment_params) for tree in (grads, old))
        direction, opt_state = optimizer.update(grads, state.opt_state, old)
        if platform() == 'cpu':
            # The update on a CPU is memory-bound. This second call computes the direction again, so that only `keep`
            # uses the moments of the first call. XLA can then fuse the first call with `keep`, without storing these
            # moments. The barrier keeps XLA from merging the two calls.
            direction, _ = optimizer.update(*jax.lax.optimization_barrier((grads, state.opt_state, old)))
        if setup.layer_decay != 1:
            rates = layer_rates(old, setup.layer_decay, setup.module.config.num_layers)
            direction = jax.tree.map(jnp.multiply, direction, rates)
        rate = schedule(state.step)
        update_norm = rate * optax.tree.norm(direction)
        # The square of the update norm must be finite too, because an update whose square overflows is useless.
        finite = jnp.isfinite(gradients.loss) & jnp.isfinite(grad_norm) & jnp.isfinite(jnp.square(update_norm))

        def keep(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

        new = keep(jax.tree.map(lambda p, d: (p - rate * d).astype(p.dtype), old, direction), old)
        new_state = state.replace(
            step=state.step + 1,
            params=combine(new, frozen),
            opt_state=keep(opt_state, state.opt_state),
            skipped=state.skipped + ~finite,
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
        )
        if setup.ema_decay:
            ema = update_ema(state.ema, new_state.params, setup.ema_decay, state.step - state.skipped)
            new_state = new_state.replace(ema=keep(ema, state.ema))
        scalars = {
            'grad_norm': grad_norm,
            'param_norm': optax.tree.norm(new_state.params),
            'update_norm': jnp.where(finite, update_norm, 0.0),
            'learning_rate': rate,
            'skipped': new_state.skipped,
            'skipped_in_row': new_state.skipped_in_row,
            **gradients.counts,
        }
        return new_state, {'sums': gradients.sums, 'scalars': scalars}

    return update


def make_forward(module: nn.Module, objective: Objective) -> Callable[[Any, Batch], Any]:
    """Makes a function: (params, batch) -> the outputs of the model without dropout."""
    return lambda params, batch: _apply(module, objective, params, batch)


def make_eval_step(module: nn.Module, objective: Objective) -> Callable[..., Sums]:
    """Makes a function: (params, batch, *teacher) -> {name: (sum, weight)} without dropout."""
    forward = make_forward(module, objective)
    return lambda params, batch, *teacher: objective.losses(
        forward(params, batch), with_teacher_outputs(objective, batch, *teacher)
    )


def with_teacher_outputs(objective: Objective, batch: Batch, *teacher: Any) -> Batch:
    """Adds the outputs of the objective's `teacher_fn` to the batch as 'teacher', if there is a `teacher_fn`."""
    return {**batch, 'teacher': objective.teacher_fn(*teacher, batch)} if objective.teacher_fn else batch


def _apply(module: nn.Module, objective: Objective, params: Any, batch: Batch, **options: Any) -> Any:
    inputs = [batch[name] for name in objective.inputs]
    options |= {name: batch[name] for name in objective.keywords}
    if not objective.capture:
        return module.apply({'params': params}, *inputs, **options)
    outputs, captured = apply_capturing(module, params, *inputs, capture=objective.capture, **options)
    return {**outputs, **captured, AUX: params.get(AUX)}
