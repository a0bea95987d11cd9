"""One update of the parameters, and one batch of evaluation: the functions that are compiled."""

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
from bertjax.model.packed_encoder import packed_rows
from bertjax.model.row_packing import PackedLayout
from bertjax.optim.schedules import Schedule
from bertjax.optim.selection import Selection, combine, layer_rates, partition, select_all
from bertjax.parallel.partition import platform
from bertjax.parallel.zero1 import GradientExchange, ShardedMoments
from bertjax.train.state import TrainState

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Metrics = dict[str, Any]


class Gradients(struct.PyTreeNode):
    """What a batch says of the parameters.

    Attributes:
      grads: of those that move, in their tree.
      loss: float32, what was minimised.
      sums: {name: (sum, weight)} of the losses.
      counts: int32, by the name of the metric: `tokens`, and of packed rows `sequences`.
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
    accumulate: int,
    dropout_seed: int | jax.Array,
    phase: int = 0,
    trained: Selection = select_all,
    layer_decay: float = 1.0,
    exchange: GradientExchange | None = None,
    parts: ShardedMoments | None = None,
    layout: PackedLayout | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """(state, batch, first) -> (new state, metrics); with a teacher's parameters too where the objective has a guide.

    `first` is the number of the example in the first row, uint32 []; the others follow in order. The arguments are
    those of `make_gradients` and `make_update`, one after the other.

    Returns:
      A function to be jitted. metrics: `sums`, {name: (sum, weight)}, and `scalars`, float32 and int32.
    """
    gradients = make_gradients(
        model,
        objective,
        accumulate=accumulate,
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
    accumulate: int,
    dropout_seed: int | jax.Array,
    phase: int = 0,
    trained: Selection = select_all,
    exchange: GradientExchange | None = None,
    layout: PackedLayout | None = None,
) -> Callable[..., Gradients]:
    """(params, batch, first) -> gradients; with a teacher's parameters too where the objective has a guide.

    What is minimised is the sum of the losses, each as its weighted mean over the whole batch times its factor. The
    weights depend on the batch alone, so that with `accumulate` = A the batch is processed in A parts whose gradients
    simply add: the same numbers in a fraction of the memory.

    Args:
      model: takes `objective.inputs`.
      objective: what it is trained for.
      accumulate: parts of a batch; divides its rows.
      dropout_seed: of all dropout.
      phase: its number: examples of different phases drop different values.
      trained: the parameters that move.
      exchange: of a state that is spread over the data axis (ZeRO-1): each device computes the gradients of its own
        rows, parts and all, and is given those of its part of the parameters.
      layout: of the sequences of a part on a device; None: a sequence a row.
    """

    def minimised(
        moving: Any, frozen: Any, rows: Batch, dropout: Dropout, weights: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, Sums]:
        with packed_rows(layout):
            outputs = _apply(model, objective, combine(moving, frozen), rows, dropout=dropout)
        sums = objective.losses(outputs, rows)
        # A batch of padding alone weighs nothing.
        divisors = {name: jnp.where(weight > 0, weight, 1.0) for name, weight in weights.items()}

        def counted(name: str) -> jax.Array:
            mean = sums[name][0] / divisors[name]
            return objective.factors[name] * mean if name in objective.factors else mean

        return sum(counted(name) for name in weights if name in sums), sums

    def gradients(
        params: Any, batch: Batch, dropout: Dropout, weights: Mapping[str, jax.Array], *teacher: Any
    ) -> tuple[tuple[jax.Array, Sums], Any]:
        kept, _ = partition(params, trained)
        moving, frozen = partition(exchange.gathered(params) if exchange else params, trained)

        def value_and_grad(rows: Batch, numbers: jax.Array) -> tuple[tuple[jax.Array, Sums], Any]:
            told, own = with_teacher_outputs(objective, rows, *teacher), dropout.replace(numbers=numbers)
            sums, grads = jax.value_and_grad(minimised, has_aux=True)(moving, frozen, told, own, weights)
            # Of kernels that were gathered in bfloat16 the parts of a batch add up in float32.
            return sums, jax.tree.map(lambda g, x: g.astype(x.dtype), grads, kept)

        if accumulate == 1:
            return value_and_grad(batch, dropout.numbers)

        def part(totals: Any, numbered: tuple[Batch, jax.Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, totals, value_and_grad(*numbered)), None

        # Row r goes to part r % A: each device keeps its own rows; r // (B/A) would move them between devices.
        whole = (dict(batch), dropout.numbers)
        parts = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), whole)
        shapes = jax.eval_shape(value_and_grad, *jax.tree.map(lambda x: x[0], parts))
        totals, _ = jax.lax.scan(part, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), parts)
        return totals

    def exchanged(
        params: Any, rows: tuple[Batch, jax.Array], seed: jax.Array, weights: Mapping[str, jax.Array], *teacher: Any
    ) -> tuple[tuple[jax.Array, Sums], Any]:
        batch, numbers = rows
        sums, grads = gradients(params, batch, Dropout(seed, numbers), weights, *teacher)
        return exchange.summed(sums), exchange.scattered(grads, partition(exchange.specs, trained)[0])

    def step_gradients(params: Any, batch: Batch, first: jax.Array, *teacher: Any) -> Gradients:
        numbers = first + jnp.arange(len(batch['attention_mask']), dtype=jnp.uint32)  # [B]
        dropout = Dropout(jnp.asarray(dropout_seed, jnp.uint32), numbers).fold_in(phase)
        weights = objective.weights(batch)
        if exchange is None:
            (loss, sums), grads = gradients(params, batch, dropout, weights, *teacher)
        else:
            compute = exchange.on_own_rows(exchanged, partition(exchange.specs, trained)[0], 2 + len(teacher))
            rows = (dict(batch), dropout.numbers)
            (loss, sums), grads = compute(params, rows, dropout.seed, weights, *teacher)
        counts = {'tokens': batch['attention_mask'].sum()}
        if 'sequence_ids' in batch:  # packed: they are not as many as the rows
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
    parts: ShardedMoments | None = None,
) -> Callable[[TrainState, Gradients], tuple[TrainState, Metrics]]:
    """(state, its gradients) -> (new state, metrics), whatever the shape of the batch was.

    A step whose loss, gradient norm or update norm is not finite changes only `step` and the counters of skipped steps.

    Args:
      optimizer: from optim.make_optimizer; gives a direction, which is scaled by the schedule here.
      schedule: learning rate by step within the phase.
      first_step: the value of `state.step` when the phase began.
      num_layers: of the model.
      trained: the parameters that move; the state must be made with the same selection.
      layer_decay: see `optim.selection.layer_rates`.
      parts: of moments that are spread over the data axis where the parameters are not.
    """

    def update(state: TrainState, found: Gradients) -> tuple[TrainState, Metrics]:
        old, frozen = partition(state.params, trained)
        grads = found.grads
        grad_norm = optax.tree.norm(grads)
        if parts is not None:
            grads, old = parts.of(grads), parts.of(old)
        direction, opt_state = optimizer.update(grads, state.opt_state, old)
        if platform() == 'cpu':
            # The moments are computed again in the loop that keeps them or not, rather than written, read and selected:
            # what a CPU's update costs is memory.
            direction, _ = optimizer.update(*jax.lax.optimization_barrier((grads, state.opt_state, old)))
        if layer_decay != 1:
            direction = jax.tree.map(jnp.multiply, direction, layer_rates(old, layer_decay, num_layers))
        rate = schedule(state.step - first_step)
        update_norm = rate * optax.tree.norm(direction)
        # Squared, as the gradient is in its norm: an update that would overflow when squared is useless, though finite.
        finite = jnp.isfinite(found.loss) & jnp.isfinite(grad_norm) & jnp.isfinite(jnp.square(update_norm))
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)  # noqa: E731
        new = keep(jax.tree.map(lambda p, d: (p - rate * d).astype(p.dtype), old, direction), old)
        new_state = TrainState(
            step=state.step + 1,
            params=combine(new, frozen),
            opt_state=keep(opt_state, state.opt_state),
            skipped=state.skipped + ~finite,
            skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + 1),
        )
        scalars = {
            'grad_norm': grad_norm,
            'param_norm': optax.tree.norm(new_state.params),
            'update_norm': jnp.where(finite, update_norm, 0.0),
            'learning_rate': rate,
            'skipped': new_state.skipped,
            'skipped_in_row': new_state.skipped_in_row,
            **found.counts,
        }
        return new_state, {'sums': found.sums, 'scalars': scalars}

    return update


def make_forward(model: nn.Module, objective: Objective) -> Callable[[Any, Batch], Any]:
    """(params, batch) -> the model's outputs without dropout."""
    return lambda params, batch: _apply(model, objective, params, batch)


def make_eval_step(model: nn.Module, objective: Objective) -> Callable[..., Sums]:
    """(params, batch) -> {name: (sum, weight)} without dropout; with a teacher_fn, of its parameters too."""
    forward = make_forward(model, objective)
    return lambda params, batch, *teacher: objective.losses(
        forward(params, batch), with_teacher_outputs(objective, batch, *teacher)
    )


def with_teacher_outputs(objective: Objective, batch: Batch, *teacher: Any) -> Batch:
    """The batch, with what the objective's guide says of it."""
    return {**batch, 'teacher': objective.teacher_fn(*teacher, batch)} if objective.teacher_fn else batch


def _apply(model: nn.Module, objective: Objective, params: Any, batch: Batch, **options: Any) -> Any:
    inputs = [batch[name] for name in objective.inputs]
    if not objective.capture:
        return model.apply({'params': params}, *inputs, **options)
    outputs, kept = apply_capturing(model, params, *inputs, capture=objective.capture, **options)
    return {**outputs, **kept, AUX: params.get(AUX)}
