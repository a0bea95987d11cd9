"""The attention mask, from which each implementation derives a bias or the arguments of a kernel."""

import jax
import jax.numpy as jnp
from flax import struct

from bertjax.model.row_packing import PackedLayout


class AttentionMask(struct.PyTreeNode):
    """The keys that each query may see.

    Tokens do not see padding keys. The results of padding queries are not used.

    Attributes:
      key_mask: int32 [B, S], 1 for visible tokens, 0 for padding and hidden tokens. For cuDNN, the sum over S is the
        length of a row, because `data/` pads unpacked rows at the end.
      sequence_ids: int32 [B, S], the sequence of each position in a packed row. A query sees only keys of its sequence.
        None if each row is one sequence. (JAX's kernels call these "segment ids". In BERT, the segments are A and B.)
      causal: Whether to hide the keys to the right of every query.
      causal_queries: int32 [B, S], 1 for queries that do not see the keys to their right; None if there are none.
      window: Keys that are more than `window` // 2 positions away from a query are hidden. 0 for no window.
      query_ids: int32 [B, Q], the sequence of each query. None if the queries are the first Q positions of the row, or
        if `sequence_ids` is None.
      positions: int [B, S], the index of each key, for windows and dropout: with a `PackedLayout` (then uint32), the
        index in its sequence, else in its row. None for the index in the row.
      query_positions: int [B, Q], the index of each query, for windows only. None if the queries are the first Q
        positions of the row.
      hidden_queries: Whether the caller uses the results of hidden tokens, which act as queries but not as keys.
      layout: The layout of packed rows, or None. `select.attend` builds a mask for each row group of the layout.
    """

    key_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    query_ids: jax.Array | None = None
    positions: jax.Array | None = None
    query_positions: jax.Array | None = None
    causal_queries: jax.Array | None = None
    window: int = struct.field(pytree_node=False, default=0)
    hidden_queries: bool = struct.field(pytree_node=False, default=False)
    layout: PackedLayout | None = struct.field(pytree_node=False, default=None)

    @property
    def groups(self) -> jax.Array:
        """`sequence_ids` and `key_mask` as one array for kernels, int32 [B, S].

        Tokens have odd numbers, which are equal within a sequence. Padding has even numbers.
        """
        groups = self.key_mask if self.sequence_ids is None else 2 * self.sequence_ids + self.key_mask
        return groups.astype(jnp.int32)

    def visible(self, num_queries: int) -> jax.Array:
        """Computes which keys each of Q = `num_queries` queries may see: bool [B, 1, Q or 1, S]."""
        visible = self.key_mask[:, None, None, :] > 0  # [B, 1, 1, S]
        if self.sequence_ids is not None:
            query_ids = self.sequence_ids[:, :num_queries] if self.query_ids is None else self.query_ids
            visible = visible & (query_ids[:, None, :, None] == self.sequence_ids[:, None, None, :])
        if self.causal or self.causal_queries is not None:
            left = jnp.tril(jnp.ones((num_queries, self.key_mask.shape[1]), bool))  # [Q, S]
            if not self.causal:
                left = left | (self.causal_queries[:, None, :num_queries, None] == 0)
            visible = visible & left  # [B, 1, Q, S]
        if self.window:
            keys = _positions(self.key_mask) if self.positions is None else self.positions
            queries = keys[:, :num_queries] if self.query_positions is None else self.query_positions
            distances = queries.astype(jnp.int32)[:, None, :, None] - keys.astype(jnp.int32)[:, None, None, :]
            visible = visible & (jnp.abs(distances) <= self.window // 2)
        return visible


def _positions(x: jax.Array) -> jax.Array:
    """Returns the index of each position of rows x [B, S]: int32 [1 or B, S]."""
    if isinstance(x.shape[1], int):
        return jnp.arange(x.shape[1])[None]
    return jnp.cumsum(jnp.ones_like(x), axis=1) - 1  # ONNX has no range of a symbolic length
