"""Who may attend to whom, before an implementation of attention turns it into a bias or a kernel's arguments."""

import jax
import jax.numpy as jnp
from flax import struct

from bertjax.model.row_packing import BatchLayout, PackedLayout


class AttentionMask(struct.PyTreeNode):
    """Which keys each query may see.

    Padding keys are hidden from every query; padding queries see what the others see (nobody reads their result).

    Attributes:
      key_mask: int32 [B, S], 1 for tokens and 0 for padding. `data/` pads at the end of a row, so that its sums over S
        are the lengths that fused kernels take.
      sequence_ids: int32 [B, S], which sequence of a packed row a position belongs to: only keys of the query's own
        sequence are seen. None: a row is one sequence. (Kernels say "segment ids", BERT's word for A and B.)
      causal: hide also the keys to the right of a query.
      query_ids: int32 [B, Q], the sequence of each query, where these are not the first Q positions of the row.
      places: uint32 [B, S], each key's place in its own sequence, where dropout is that of sequences, see
        `dropout.drop_attention`.
      layout: the fixed slots of rows that attention takes group by group; the other fields are then set for each.
    """

    key_mask: jax.Array
    sequence_ids: jax.Array | None = None
    causal: bool = struct.field(pytree_node=False, default=False)
    query_ids: jax.Array | None = None
    places: jax.Array | None = None
    layout: PackedLayout | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def of_rows(
        cls, key_mask: jax.Array, layout: BatchLayout | PackedLayout | None, *, causal: bool
    ) -> 'AttentionMask':
        """The mask of rows with this layout; None: of rows with a sequence each."""
        if isinstance(layout, PackedLayout):
            return cls(key_mask, causal=causal, layout=layout)
        return cls(key_mask, None if layout is None else layout.sequence_ids, causal)

    @property
    def groups(self) -> jax.Array:
        """int32 [B, S], equal where two positions are tokens of one sequence; odd at tokens, even at padding: what a
        kernel needs in place of both arrays."""
        groups = self.key_mask if self.sequence_ids is None else 2 * self.sequence_ids + self.key_mask
        return groups.astype(jnp.int32)

    def visible(self, num_queries: int) -> jax.Array:
        """Whether each of the queries at positions 0 to Q - 1 may see a key.

        Returns:
          bool [B, 1, Q, S] for scores [B, H, Q, S]; [B, 1, 1, S] where all queries see the same keys.
        """
        seen = self.key_mask[:, None, None, :] > 0  # [B, 1, 1, S]
        if self.sequence_ids is not None:
            own = self.sequence_ids[:, :num_queries] if self.query_ids is None else self.query_ids
            seen = seen & (own[:, None, :, None] == self.sequence_ids[:, None, None, :])
        if self.causal:
            seen = seen & jnp.tril(jnp.ones((num_queries, self.key_mask.shape[1]), bool))  # [B, 1, Q, S]
        return seen
