"""Rows of a table by their numbers, with gradients that are sums in a fixed order."""

import jax
import jax.numpy as jnp

GROUP = 128  # sorted positions that are summed by one product


@jax.custom_vjp
def onehot_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """The rows of a small table [N, D] by their numbers, int32 [B, S] -> [B, S, D].

    Its gradient is a product with one-hot rows, summed in float32: autodiff has a scatter of B·S rows into N, which is
    slow on TPU, of no fixed order on GPU, and rounds each addition where the computation is in bfloat16.
    """
    return jnp.take(table, ids, axis=0, mode='fill')


def _chosen_rows_gradient(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    ids, table = saved
    chosen = jax.nn.one_hot(ids, len(table), dtype=cotangent.dtype)  # [B, S, N]
    product = jnp.einsum(
        'BSN,BSD->ND', chosen, cotangent, precision='highest', preferred_element_type=jnp.float32
    )  # [N, D]
    return product.astype(cotangent.dtype), None


onehot_lookup.defvjp(lambda table, ids: (onehot_lookup(table, ids), (ids, table)), _chosen_rows_gradient)


@jax.custom_vjp
def sorted_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """The rows of a large table [V, D] by their numbers, int32 [B, S] -> [B, S, D], for GPUs.

    There a scatter adds by atomic operations, in another order in every run, and in bfloat16 each addition rounds: of
    the 800th row of a frequent piece nothing is left. XLA's own way to a fixed order sorts B·S·D single numbers.
    """
    return jnp.take(table, ids, axis=0, mode='fill')


def _looked_up_gradient(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    ids, table = saved
    return sum_rows_by_id(cotangent.reshape(-1, cotangent.shape[-1]), ids.reshape(-1), len(table)).astype(
        table.dtype
    ), None


sorted_lookup.defvjp(lambda table, ids: (sorted_lookup(table, ids), (ids, table)), _looked_up_gradient)


def sum_rows_by_id(rows: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """For each number below `count` the sum of the rows that have it, float32 [count, D], zeros where none has.

    The rows are sorted by number, and in each group of GROUP of them those of one number are summed by a product. Only
    the first and the last number of a group can be in another group, too: these few sums are added by a product among
    themselves. Then every number has one sum, which is written to its place.

    Args:
      rows: [N, D].
      ids: int32 [N]; what is not below `count` is left out.
    """
    ids = jnp.pad(ids, (0, -len(ids) % GROUP), constant_values=count)
    order = jnp.argsort(ids)  # stable
    sorted_ids = ids[order].reshape(-1, GROUP)  # [G, R]
    x = jnp.take(rows, order, axis=0, mode='fill', fill_value=0).reshape(*sorted_ids.shape, -1)  # [G, R, D]
    differs = (sorted_ids[:, 1:] != sorted_ids[:, :-1]).astype(jnp.int32)
    place = jnp.pad(jnp.cumsum(differs, axis=1), ((0, 0), (1, 0)))  # [G, R], which of the group's numbers it is
    member = place[:, None, :] == jnp.arange(GROUP)[:, None]  # [G, R, R]
    sums = jnp.einsum(
        'GPR,GRD->GPD', member.astype(x.dtype), x, precision='highest', preferred_element_type=jnp.float32
    )
    owner = jnp.max(jnp.where(member, sorted_ids[:, None], -1), axis=2)  # [G, R], -1 behind the last
    owner = jnp.where(owner < 0, count, owner)

    last = place[:, -1:]  # [G, 1]
    at_last = jnp.arange(GROUP) == last
    edge_ids = jnp.stack([owner[:, 0], jnp.where(last[:, 0] > 0, sorted_ids[:, -1], count)], 1).reshape(-1)  # [2 G]
    edge_sums = jnp.stack([sums[:, 0], jnp.take_along_axis(sums, last[..., None], 1)[:, 0]], 1)
    equal = edge_ids[:, None] == edge_ids
    edges = jnp.einsum(
        'EF,FD->ED', equal.astype(jnp.float32), edge_sums.reshape(len(edge_ids), -1), precision='highest'
    )
    is_first = jnp.argmax(equal, axis=1) == jnp.arange(len(edge_ids))

    inner = jnp.where(at_last | (jnp.arange(GROUP) == 0), count, owner)
    places = jnp.concatenate([inner.reshape(-1), jnp.where(is_first, edge_ids, count)])
    # Each place once, also of those that are left out: only then XLA need not add.
    places = jnp.where(places < count, places, count + jnp.arange(len(places)))
    values = jnp.concatenate([sums.reshape(-1, sums.shape[-1]), edges])
    return jnp.zeros((count, rows.shape[1])).at[places].set(values, mode='drop', unique_indices=True)


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """hidden [B, S, D] at positions [B, P] -> [B, P, D].

    As a product with one-hot rows: exact, and its gradient is a product too, where a gather's would be a scatter
    that collides at the unused positions (slow on TPU, of no fixed order on GPU). Costs P·S·D a sequence, under 0.01 %.
    """
    chosen = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)  # [B, P, S]
    return jnp.einsum('BPS,BSD->BPD', chosen, hidden, precision='highest')  # [B, P, D]
