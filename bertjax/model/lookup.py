"""Embedding lookups whose gradients are summed in float32, and on GPUs in a fixed order."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

GROUP = 128  # the number of sorted rows that one product sums


def _make_lookup(sum_rows: Callable[[jax.Array, jax.Array, int], jax.Array]) -> Callable[..., jax.Array]:
    """Makes a lookup (table [N, D], int32 ids [B, S]) -> rows [B, S, D]. An id of N or more gives NaN.

    `sum_rows` is the gradient of the table: (cotangent [B, S, D], ids [B, S], N) -> float32 [N, D].
    """

    @jax.custom_vjp
    def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.take(table, ids, axis=0, mode='fill')

    def gradient(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
        table, ids = residuals
        return sum_rows(cotangent, ids, len(table)).astype(table.dtype), None

    lookup.defvjp(lambda table, ids: (lookup(table, ids), (table, ids)), gradient)
    return lookup


def _sum_by_onehot(cotangent: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    one_hot = jax.nn.one_hot(ids, count, dtype=cotangent.dtype)  # [B, S, N]
    return jnp.einsum('BSN,BSD->ND', one_hot, cotangent, precision='highest', preferred_element_type=jnp.float32)


def _sum_by_scatter(cotangent: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    sums = jnp.zeros((count, cotangent.shape[-1]), jnp.float32)
    return sums.at[ids].add(cotangent.astype(jnp.float32), mode='drop')


def sum_rows_by_id(rows: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """Sums rows [N, D] that have the same id, int32 [N] -> float32 [count, D]. Ids of `count` or more are ignored.

    The rows are sorted by id and divided into groups of GROUP rows. One product per group sums the rows of each id.
    Only the first and the last id of a group can also occur in other groups, so another product adds up their sums.
    """
    ids = jnp.pad(ids, (0, -len(ids) % GROUP), constant_values=count)
    order = jnp.argsort(ids)  # stable
    sorted_ids = ids[order].reshape(-1, GROUP)  # [G, R]
    x = jnp.take(rows, order, axis=0, mode='fill', fill_value=0).reshape(*sorted_ids.shape, -1)  # [G, R, D]
    is_new_id = (sorted_ids[:, 1:] != sorted_ids[:, :-1]).astype(jnp.int32)
    slot = jnp.pad(jnp.cumsum(is_new_id, axis=1), ((0, 0), (1, 0)))  # [G, R], the index of the id in its group
    slot_mask = slot[:, None, :] == jnp.arange(GROUP)[:, None]  # [G, R, R]
    sums = jnp.einsum(
        'GPR,GRD->GPD', slot_mask.astype(x.dtype), x, precision='highest', preferred_element_type=jnp.float32
    )
    slot_ids = jnp.max(jnp.where(slot_mask, sorted_ids[:, None], -1), axis=2)  # [G, R], -1 in unused slots
    slot_ids = jnp.where(slot_ids < 0, count, slot_ids)

    last = slot[:, -1:]  # [G, 1]
    at_last = jnp.arange(GROUP) == last
    edge_ids = jnp.stack([slot_ids[:, 0], jnp.where(last[:, 0] > 0, sorted_ids[:, -1], count)], 1).reshape(-1)  # [2 G]
    edge_sums = jnp.stack([sums[:, 0], jnp.take_along_axis(sums, last[..., None], 1)[:, 0]], 1)
    equal = edge_ids[:, None] == edge_ids
    edges = jnp.einsum(
        'EF,FD->ED', equal.astype(jnp.float32), edge_sums.reshape(len(edge_ids), -1), precision='highest'
    )
    is_leader = jnp.argmax(equal, axis=1) == jnp.arange(len(edge_ids))

    inner = jnp.where(at_last | (jnp.arange(GROUP) == 0), count, slot_ids)
    targets = jnp.concatenate([inner.reshape(-1), jnp.where(is_leader, edge_ids, count)])
    # All targets are unique, including those outside the table, so XLA can write values instead of adding them.
    targets = jnp.where(targets < count, targets, count + jnp.arange(len(targets)))
    values = jnp.concatenate([sums.reshape(-1, sums.shape[-1]), edges])
    return jnp.zeros((count, rows.shape[1])).at[targets].set(values, mode='drop', unique_indices=True)


# A lookup for small tables. Its gradient is a product with one-hot rows. Autodiff would use a scatter, which is slow on
# TPU, adds in a different order in every run on GPU, and in bfloat16 rounds each addition.
onehot_lookup = _make_lookup(_sum_by_onehot)
# A lookup for large tables. Its gradient is a scatter in float32. Autodiff would use a scatter in bfloat16, where the
# sum for a frequent piece would stop changing after about 800 rows.
scatter_lookup = _make_lookup(_sum_by_scatter)
# A lookup for large tables on GPUs, where XLA's deterministic scatter would sort B·S·D scalars.
sorted_lookup = _make_lookup(lambda x, ids, count: sum_rows_by_id(x.reshape(-1, x.shape[-1]), ids.reshape(-1), count))


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Selects positions [B, P] of hidden [B, S, D] -> [B, P, D].

    A product with one-hot rows selects them exactly. It costs P·S·D multiplications per sequence, under 0.1 % of the
    work of BERT-base. Its gradient is a product too. The gradient of a gather would be a scatter, which is slow on TPU
    and has no fixed order on GPU.
    """
    one_hot = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)  # [B, P, S]
    return jnp.einsum('BPS,BSD->BPD', one_hot, hidden, precision='highest')  # [B, P, D]
