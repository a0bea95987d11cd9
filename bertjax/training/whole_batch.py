"""Exact gradients of losses that compare all rows of a batch, even if the rows are split over parts and devices.

Source: gradient caching (Gao et al. 2021, arXiv 2101.06983). If a batch has several parts, each part is computed
twice. The first pass computes the outputs, which are small. Then the gradient of the loss with respect to the outputs
is computed. The second pass computes the gradient with respect to the parameters. Dropout is a function of the seed and
the example numbers, so both passes drop the same values.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.losses import Arrays
from bertjax.parallel.zero1 import AXIS


def split_rows(rows: Any, parts: int) -> Any:
    """Splits arrays [B, ...] into A parts [A, B/A, ...].

    Row r goes to part r % A, so that each device keeps its rows. With r // (B / A), rows would move between devices.
    """
    return jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), rows)


def sum_over_parts(function: Callable[[Arrays], Any], rows: Arrays, parts: int) -> Any:
    """Calls `function` for each part of the rows, one after the other, and sums the returned trees."""
    if parts == 1:
        return function(rows)
    split = split_rows(rows, parts)
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], split))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, function(part)), None), zeros, split)[0]


def whole_batch_gradients(
    forward: Callable[[Any, Arrays], Any],
    loss: Callable[[Any, Arrays], tuple[jax.Array, Any]],
    params: Any,
    rows: Arrays,
    compared: Arrays,
    parts: int,
    over_devices: bool,
) -> tuple[tuple[jax.Array, Any], Any]:
    """Computes ((loss, sums), gradients): the loss of the whole batch, and the contribution of `rows` to its gradients.

    Args:
      forward: (parameters, rows) -> outputs of these rows.
      loss: (outputs of all rows, `compared` of all rows) -> (loss, sums).
      rows, compared: The arrays of the batch that `forward` reads, and the arrays that `loss` reads.
      parts: The number of parts in which the rows are computed.
      over_devices: Whether the caller is in `jax.shard_map`, where the arrays have only the rows of this device.
    """
    if parts == 1:
        outputs, pull = jax.vjp(lambda params: forward(params, rows), params)
    else:
        split = split_rows(rows, parts)
        outputs = jax.lax.map(lambda part: forward(params, part), split)
        outputs = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), outputs)  # inverts `split_rows`
    everything = outputs, compared
    if over_devices:
        everything = jax.lax.all_gather(everything, AXIS, axis=0, tiled=True)
    loss_and_sums, cotangents = jax.value_and_grad(loss, has_aux=True)(*everything)
    if over_devices:
        count = len(rows['example_ids'])
        first = jax.lax.axis_index(AXIS) * count
        cotangents = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count), cotangents)
    if parts == 1:
        return loss_and_sums, pull(cotangents)[0]

    def add_part(total: Any, part: tuple[Arrays, Any]) -> tuple[Any, None]:
        part_rows, part_cotangents = part
        _, pull = jax.vjp(lambda params: forward(params, part_rows), params)
        return jax.tree.map(lambda x, g: x + g.astype(x.dtype), total, pull(part_cotangents)[0]), None

    # If a `GradientExchange` gathers kernels in bfloat16, their dtype is not precise enough for the sum of many parts.
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), params)
    return loss_and_sums, jax.lax.scan(add_part, zeros, (split, split_rows(cotangents, parts)))[0]
