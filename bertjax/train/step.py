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
from bertjax.optim.trainable import Selection, combine, layer_rates, partition, select_all
from bertjax.parallel.partition import platform
from bertjax.parallel.zero1 import GradientExchange, ShardedMoments
from bertjax.train.state import TrainState, update_ema
from bertjax.train.whole_batch import split_rows, whole_batch_gradients

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Metrics = dict[str, Any]


class Gradients(struct.PyTreeNode):
    """The gradients and metrics of a batch.

    Attributes:
      grads: The gradients, in the tree of the trained parameters.
      loss: float32 scalar, the minimised loss.
      sums: {name: (sum, weight)} of the losses.
      counts: {name: int32 scalar}: `tokens`, and `sequences` for packed rows.
    """

    grads: Any
    loss: jax.Array
    sums: Sums
    counts: dict[str, jax.Array]


def make_train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    first_step: int,
    grad_accum_steps: int,
    dropout_seed: int | jax.Array,
    phase: int = 0,
    trained: Selection = select_all,
    layer_decay: float = 1.0,
    ema_decay: float = 0.0,
    exchange: GradientExchange | None = None,
    parts: ShardedMoments | None = None,
    layout: PackedLayout | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Makes a train step: (state, batch, first, *teacher) -> (new state, metrics).

    `first` is the example number of the first row, a uint32 scalar; the other rows follow in order. `teacher` has the
    teacher's parameters if the objective has a `teacher_fn`, else it is empty.

    Args:
      model, objective, grad_accum_steps, dropout_seed, phase, trained, exchange, layout: See `make_gradients`.
      optimizer, schedule, first_step, layer_decay, ema_decay, parts: See `make_update`.

    Returns:
      A function to be jitted. Its metrics are `sums`, {name: (sum, weight)}, and `scalars`, {name: float32 or int32}.
    """
    gradients = make_gradients(
        model,
        objective,
        grad_accum_steps=grad_accum_steps,
        dropout_seed=dropout_seed,
        phase=phase,
        trained=trained,
        exchange=exchange,
        layout=layout,
    )
    update = make_update(
        optimizer,
        schedule,
        first_step=first_step,
        trained=trained,
        layer_decay=layer_decay,
        ema_decay=ema_decay,
        num_layers=model.config.num_layers,
        parts=parts,
    )

    def train_step(state: TrainState, batch: Batch, first: jax.Array, *teacher: Any) -> tuple[TrainState, Metrics]:
        return update(state, gradients(state.params, batch, first, *teacher))

    return train_step


def make_gradients(
    model: nn.Module,
    objective: Objective,
    *,
    grad_accum_steps: int,
    dropout_seed: int | jax.Array,
    phase: int = 0,
    trained: Selection = select_all,
    exchange: GradientExchange | None = None,
    layout: PackedLayout | None = None,
) -> Callable[..., Gradients]:
    """Makes a function: (params, batch, first, *teacher) -> Gradients; see `make_train_step` for its arguments.

    The minimised loss is the sum of the losses, each a weighted mean over the whole batch times its factor. The weights
    depend only on the batch. Therefore, a batch can be processed in `grad_accum_steps` parts whose gradients add up to
    the gradients of the full batch, with a fraction of the memory. This is also true for objectives that compare the
    rows of a batch, see whole_batch.py.

    Args:
      model: The module, which takes `objective.inputs`.
      grad_accum_steps: The number of parts of a batch, a divisor of its rows.
      dropout_seed: The seed of all dropout.
      phase: The number of the phase; examples of different phases drop different values.
      trained: Selects the trained parameters.
      exchange: The gradient exchange of a state that is sharded over the data axis (ZeRO-1). Each device computes the
        gradients of its rows and receives the summed gradients of its part of the parameters.
      layout: The layout of the rows of one part on one device; None if each row is one sequence.
    """

    packed_model = model if layout is None else model.clone(packing=layout)

    def loss_and_sums(
        trained_params: Any, frozen: Any, rows: Batch, dropout: Dropout, weights: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, Sums]:
        outputs = _apply(packed_model, objective, combine(trained_params, frozen), rows, dropout=dropout)
        return mean_loss(outputs, rows, weights)

    def mean_loss(outputs: Any, rows: Batch, weights: Mapping[str, jax.Array]) -> tuple[jax.Array, Sums]:
        sums = objective.losses(outputs, rows)
        # The weight is 0 if the batch has only padding.
        divisors = {name: jnp.where(weight > 0, weight, 1.0) for name, weight in weights.items()}

        def scaled_mean(name: str) -> jax.Array:
            mean = sums[name][0] / divisors[name]
            return objective.factors[name] * mean if name in objective.factors else mean

        return sum(scaled_mean(name) for name in weights if name in sums), sums

    def gradients(
        params: Any, batch: Batch, dropout: Dropout, weights: Mapping[str, jax.Array], *teacher: Any
    ) -> tuple[tuple[jax.Array, Sums], Any]:
        stored, _ = partition(params, trained)
        trained_params, frozen = partition(exchange.gather(params) if exchange else params, trained)

        def value_and_grad(rows: Batch, numbers: jax.Array) -> tuple[tuple[jax.Array, Sums], Any]:
            rows, row_dropout = with_teacher_outputs(objective, rows, *teacher), dropout.replace(example_ids=numbers)
            sums, grads = jax.value_and_grad(loss_and_sums, has_aux=True)(
                trained_params, frozen, rows, row_dropout, weights
            )
            # Kernels may be gathered in bfloat16, but the gradients of the parts add up in the dtype of the parameters.
            return sums, jax.tree.map(lambda g, x: g.astype(x.dtype), grads, stored)

        if objective.whole_batch:

            def forward(trained_params: Any, rows: tuple[Batch, jax.Array]) -> Any:
                row_dropout = dropout.replace(example_ids=rows[1])
                return _apply(packed_model, objective, combine(trained_params, frozen), rows[0], dropout=row_dropout)

            sums, grads = whole_batch_gradients(
                forward,
                lambda outputs, rows: mean_loss(outputs, rows, weights),
                trained_params,
                (dict(batch), dropout.example_ids),
                {name: x for name, x in batch.items() if name not in objective.inputs},
                grad_accum_steps,
                exchange,
            )
            return sums, jax.tree.map(lambda g, x: g.astype(x.dtype), grads, stored)

        if grad_accum_steps == 1:
            return value_and_grad(batch, dropout.example_ids)

        def part(totals: Any, numbered: tuple[Batch, jax.Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, totals, value_and_grad(*numbered)), None

        parts = split_rows((dict(batch), dropout.example_ids), grad_accum_steps)
        shapes = jax.eval_shape(value_and_grad, *jax.tree.map(lambda x: x[0], parts))
        totals, _ = jax.lax.scan(part, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), parts)
        return totals

    def local_gradients(
        params: Any, rows: tuple[Batch, jax.Array], seed: jax.Array, weights: Mapping[str, jax.Array], *teacher: Any
    ) -> tuple[tuple[jax.Array, Sums], Any]:
        batch, numbers = rows
        sums, grads = gradients(params, batch, Dropout(seed, numbers), weights, *teacher)
        # The sums of a loss of the whole batch are already equal on all devices.
        return sums if objective.whole_batch else exchange.sum(sums), exchange.reduce_scatter(
            grads, partition(exchange.specs, trained)[0]
        )

    def step_gradients(params: Any, batch: Batch, first: jax.Array, *teacher: Any) -> Gradients:
        numbers = first + jnp.arange(len(batch['attention_mask']), dtype=jnp.uint32)  # [B]
        dropout = Dropout(jnp.asarray(dropout_seed, jnp.uint32), numbers).fold_in(phase)
        weights = objective.weights(batch)
        if exchange is None:
            (loss, sums), grads = gradients(params, batch, dropout, weights, *teacher)
        else:
            compute = exchange.over_devices(local_gradients, partition(exchange.specs, trained)[0], 2 + len(teacher))
            rows = (dict(batch), dropout.example_ids)
            (loss, sums), grads = compute(params, rows, dropout.seed, weights, *teacher)
        counts = {'tokens': batch['attention_mask'].sum()}
        if 'sequence_ids' in batch:  # packed rows hold several sequences
            counts['sequences'] = batch['sequence_ids'].max(-1).sum()
        return Gradients(grads, loss, sums, counts)

    return step_gradients


def make_update(
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    first_step: int,
    num_layers: int,
    trained: Selection = select_all,
    layer_decay: float = 1.0,
    ema_decay: float = 0.0,
    parts: ShardedMoments | None = None,
) -> Callable[[TrainState, Gradients], tuple[TrainState, Metrics]]:
    """Makes a function: (state, its Gradients) -> (new state, metrics), which does not depend on the batch shape.

    If loss, gradient norm or update norm is not finite, a step changes only `step` and the counters of skipped steps.

    Args:
      optimizer: The optimiser, from optim.make_optimizer. It returns a direction, which this function multiplies by
        the learning rate.
      schedule: (step within the phase) -> learning rate.
      first_step: The value of `state.step` at the start of the phase.
      num_layers: The number of blocks of the model.
      trained: Selects the trained parameters; the state must be created with the same selection.
      layer_decay: See `optim.trainable.layer_rates`.
      ema_decay: If > 0, the highest decay of the state's average of the weights, see `state.update_ema`.
      parts: The shardings of the moments if they, but not the parameters, are sharded over the data axis; else None.
    """

    def update(state: TrainState, gradients: Gradients) -> tuple[TrainState, Metrics]:
        old, frozen = partition(state.params, trained)
        grads = gradients.grads
        grad_norm = optax.tree.norm(grads)
        if parts is not None:
            grads, old = parts.constrain(grads), parts.constrain(old)
        direction, opt_state = optimizer.update(grads, state.opt_state, old)
        if platform() == 'cpu':
            # The update on a CPU is memory-bound. Recomputing the moments in the loop that selects between new and old
            # moments is cheaper than writing and reading them.
            direction, _ = optimizer.update(*jax.lax.optimization_barrier((grads, state.opt_state, old)))
        if layer_decay != 1:
            direction = jax.tree.map(jnp.multiply, direction, layer_rates(old, layer_decay, num_layers))
        rate = schedule(state.step - first_step)
        update_norm = rate * optax.tree.norm(direction)
        # The square must be finite too, as in the gradient norm, because an update whose square overflows is useless.
        finite = jnp.isfinite(gradients.loss) & jnp.isfinite(grad_norm) & jnp.isfinite(jnp.square(update_norm))
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)  # noqa: E731
        new = keep(jax.tree.map(lambda p, d: (p - rate * d).astype(p.dtype), old, direction), old)
        new_state = state.replace(
            step=state.step + 1,
            params=combine(new, frozen),
            opt_state=keep(opt_state, state.opt_state),
            skipped=state.skipped + ~finite,
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
        )
        if ema_decay:
            ema = update_ema(state.ema, new_state.params, ema_decay, state.step - state.skipped)
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


def make_forward(model: nn.Module, objective: Objective) -> Callable[[Any, Batch], Any]:
    """Makes a function: (params, batch) -> the outputs of the model without dropout."""
    return lambda params, batch: _apply(model, objective, params, batch)


def make_eval_step(model: nn.Module, objective: Objective) -> Callable[..., Sums]:
    """Makes a function: (params, batch, *teacher) -> {name: (sum, weight)} without dropout."""
    forward = make_forward(model, objective)
    return lambda params, batch, *teacher: objective.losses(
        forward(params, batch), with_teacher_outputs(objective, batch, *teacher)
    )


def with_teacher_outputs(objective: Objective, batch: Batch, *teacher: Any) -> Batch:
    """Adds the outputs of the objective's `teacher_fn` to the batch, if it has one."""
    return {**batch, 'teacher': objective.teacher_fn(*teacher, batch)} if objective.teacher_fn else batch


def _apply(model: nn.Module, objective: Objective, params: Any, batch: Batch, **options: Any) -> Any:
    inputs = [batch[name] for name in objective.inputs]
    options |= {name: batch[name] for name in objective.keywords}
    if not objective.capture:
        return model.apply({'params': params}, *inputs, **options)
    outputs, captured = apply_capturing(model, params, *inputs, capture=objective.capture, **options)
    return {**outputs, **captured, AUX: params.get(AUX)}
