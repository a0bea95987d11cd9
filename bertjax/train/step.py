"""One update of the parameters, and one batch of evaluation: the functions that are compiled."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bertjax.losses import pretraining_losses, pretraining_weights
from bertjax.optim.schedules import Schedule
from bertjax.train.state import TrainState, model_inputs

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]
Metrics = dict[str, Any]


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    first_step: int,
    accumulate: int,
    dropout_seed: int,
    rng_impl: str,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """(state, batch) -> (new state, metrics).

    The objective is the sum over the losses of their weighted means over the whole batch. The weights are known from
    the batch alone, so that with `accumulate` = A the batch is worked through in A parts whose gradients simply add:
    the same numbers (but for dropout) in a fraction of the memory.

    A step whose loss, gradient norm or update norm is not finite changes nothing but `step` and the counters of
    skipped steps.

    Args:
      model: a BertForPreTraining.
      optimizer: from optim.make_optimizer; gives a direction, which is scaled by the schedule here.
      schedule: learning rate by step within the phase.
      first_step: the value of `state.step` when the phase began.
      accumulate: parts of a batch; a divisor of the rows.
      dropout_seed: of all dropout; folded with the step.
      rng_impl: 'threefry2x32' gives the same dropout on every mesh; 'rbg' is cheaper on TPU and does not.

    Returns:
      A function to be jitted. metrics: `sums`, {name: (sum, weight)}, and `scalars`, float32 and int32.
    """

    def objective(params: Any, rows: Batch, key: jax.Array, weights: Mapping[str, jax.Array]) -> tuple[jax.Array, Sums]:
        outputs = model.apply({'params': params}, **model_inputs(rows), deterministic=False, rngs={'dropout': key})
        sums = pretraining_losses(outputs, rows)
        return sum(sums[name][0] / jnp.maximum(weights[name], 1.0) for name in weights if name in sums), sums

    def gradients(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Sums, Any]:
        weights = pretraining_weights(batch)
        value_and_grad = jax.value_and_grad(objective, has_aux=True)
        if accumulate == 1:
            (loss, sums), grads = value_and_grad(params, batch, key, weights)
            return loss, sums, grads

        def part(totals: Any, i_rows: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            i, rows = i_rows
            (loss, sums), grads = value_and_grad(params, rows, jax.random.fold_in(key, i), weights)
            return jax.tree.map(jnp.add, totals, (loss, sums, grads)), None

        # Row r goes to part r % A: each device keeps its own rows, where r // (B/A) would move them between devices.
        parts = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), dict(batch))
        shapes = jax.eval_shape(value_and_grad, params, jax.tree.map(lambda x: x[0], parts), key, weights)
        (loss, sums), grads = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        totals, _ = jax.lax.scan(part, (loss, sums, grads), (jnp.arange(accumulate), parts))
        return totals

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        # The key is made here and not captured: a captured array would bind the step to the devices of this process.
        key = jax.random.fold_in(jax.random.key(dropout_seed, impl=rng_impl), state.step)
        loss, sums, grads = gradients(state.params, batch, key)
        grad_norm = optax.tree.norm(grads)
        direction, opt_state = optimizer.update(grads, state.opt_state, state.params)
        rate = schedule(state.step - first_step)
        updates = jax.tree.map(lambda u: -rate * u, direction)
        update_norm = optax.tree.norm(updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & jnp.isfinite(update_norm)
        params = optax.apply_updates(state.params, updates)
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)  # noqa: E731
        new_state = TrainState(
            step=state.step + 1,
            params=keep(params, state.params),
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
            'tokens': batch['attention_mask'].sum(),
        }
        return new_state, {'sums': sums, 'scalars': scalars}

    return train_step


def make_eval_step(model: nn.Module) -> Callable[[Any, Batch], Sums]:
    """(params, batch) -> {name: (sum, weight)} without dropout."""

    def eval_step(params: Any, batch: Batch) -> Sums:
        return pretraining_losses(model.apply({'params': params}, **model_inputs(batch), deterministic=True), batch)

    return eval_step
