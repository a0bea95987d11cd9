"""Row packing: the encoder computes several sequences in one row, each as in a row of its own up to rounding.

The three users differ in how they choose a layout: batches of pre-training come packed from `data/packed.py`,
fine-tuning has the same slots in every batch (`data/strata.py`), a finished model packs sequences by their lengths
(`data/packing_plan.py`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model.dropout import Dropout
from bertjax.model.layout import Layout
from bertjax.model.lookup import gather_positions


class _Packing:
    """What a layout does, by `sequence_ids` and `position_ids` [T] or [R, T], `starts` and `capacities` [N] or [R, N]:
    fixed ones in NumPy, those of a batch as JAX arrays."""

    def pack(self, x: jax.Array) -> jax.Array:
        """int [R·N, S], a sequence a row -> [R, T], zeros at positions without a sequence."""
        ids, N, S = self.sequence_ids, self.starts.shape[-1], x.shape[1]
        inside = (ids >= 0) & (ids < N)
        return _at(x.reshape(-1, N * S), _where(inside, ids * S + self.position_ids))

    def unpack(self, x: jax.Array, length: int) -> jax.Array:
        """[R, T, D] -> [R·N, S, D] with S = `length`, zeros beyond a sequence's capacity."""
        positions = np.arange(length, dtype=np.int32)
        source = _where(positions < self.capacities[..., None], self.starts[..., None] + positions)
        return _take(x, source.reshape(*source.shape[:-2], -1)).reshape(-1, length, x.shape[-1])


@dataclasses.dataclass(frozen=True)
class PackedLayout(_Packing, Layout):
    """Fixed slots, the same in every batch: the positions of all rows are one row [R, T] but for attention."""

    def gather_cls(self, x: jax.Array) -> jax.Array:
        """[R, T, ...] -> [R, Q, ...], the first position of each sequence of each row."""
        return _take(x, self.cls_positions)

    def unpack_cls(self, x: jax.Array) -> jax.Array:
        """[R, Q, D] of `gather_cls` -> [R·N, 1, D], in the order of the batch."""
        return _take(x, _inverse(self.cls_positions, self.positions)[self.starts]).reshape(-1, 1, x.shape[-1])

    def split(self, x: jax.Array) -> list[jax.Array]:
        """[R, T, ...] or [R, Q, ...] -> for each group of rows [R·rows, length, ...] or [R·rows, E, ...]."""
        widths = [length for _, length in self.row_groups] if x.shape[1] == self.positions else self.most_sequences
        parts, begin = [], 0
        for (rows, _), width in zip(self.row_groups, widths, strict=True):
            parts.append(x[:, begin : begin + rows * width].reshape(-1, width, *x.shape[2:]))
            begin += rows * width
        return parts

    def join(self, parts: Sequence[jax.Array], count: int) -> jax.Array:
        """The inverse of `split`, with R = `count`."""
        return jnp.concatenate([x.reshape(count, -1, *x.shape[2:]) for x in parts], axis=1)

    def dropout(self, dropout: Dropout) -> Dropout:
        """From the sequences of a batch, numbers [R·N], to positions: numbers and positions [R, T]."""
        numbers = dropout.example_ids.reshape(-1, len(self.slots))[:, np.maximum(self.sequence_ids, 0)]
        positions = jnp.broadcast_to(self.position_ids.astype(np.uint32), numbers.shape)
        return dropout.replace(example_ids=numbers, positions=positions)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchLayout(_Packing):
    """The layout of one batch of packed rows.

    Attributes:
      sequence_ids: int32 [R, T], which of its row's sequences a position belongs to.
      position_ids: int32 [R, T], its place in that sequence.
      starts: int32 [R, N], the first position of each sequence.
      capacities: int32 [R, N], the tokens of each sequence; None if they are never unpacked.
    """

    sequence_ids: jax.Array
    position_ids: jax.Array
    starts: jax.Array
    capacities: jax.Array | None = None

    @classmethod
    def of_lengths(cls, mask: jax.Array, count: int) -> 'BatchLayout':
        """Sequences `count` · i to `count` · (i + 1) - 1 of a batch lie in row i of S positions, one after the other.

        Args:
          mask: int32 [B, S], 1 for tokens; those of a row's sequences fit S positions together.
          count: N; it divides B.
        """
        lengths = mask.sum(-1).reshape(-1, count)
        ends = jnp.cumsum(lengths, axis=1)  # [R, N]
        starts = jnp.pad(ends, ((0, 0), (1, 0)))  # [R, N + 1], the last is that of the row's padding
        positions = jnp.arange(mask.shape[1])
        ids = (positions[:, None] >= ends[:, None]).sum(-1)  # [R, S]; N for padding
        return cls(ids, positions - jnp.take_along_axis(starts, ids, axis=1), starts[:, :-1], lengths)

    def gather_cls(self, x: jax.Array) -> jax.Array:
        """[R, T, D] -> [R, N, D], the first position of each sequence."""
        return gather_positions(x, self.starts)

    @property
    def longest(self) -> int:
        """The most positions of a sequence."""
        return self.sequence_ids.shape[1]


def _where(condition: Any, source: Any) -> Any:
    """`source`, and -1 where the condition does not hold: in NumPy if both are."""
    return (np if isinstance(condition, np.ndarray) else jnp).where(condition, source, -1)


def _inverse(source: np.ndarray, count: int) -> np.ndarray:
    """int32 [count], where each number first is in `source`; -1: nowhere."""
    positions = np.full(count, -1, np.int32)
    positions[source[::-1]] = np.arange(len(source), dtype=np.int32)[::-1]
    return positions


def _at(x: jax.Array, source: Any) -> jax.Array:
    """[R, P, ...] at the positions [Q] or [R, Q]: [R, Q, ...]; zeros at -1."""
    if isinstance(source, np.ndarray):
        found, present = x[:, np.maximum(source, 0)], (source >= 0)[None]
        if present.all():
            return found
    else:
        found, present = jax.vmap(lambda row, at: row[at])(x, jnp.maximum(source, 0)), source >= 0
    return jnp.where(present.reshape(*present.shape, *[1] * (x.ndim - 2)), found, jnp.zeros((), x.dtype))


def _take(x: jax.Array, source: Any) -> jax.Array:
    """`_at`; of fixed positions the gradient is gathered too, where autodiff would add rows to zeros one by one.

    A position that is taken twice has the gradient of the first time.
    """
    if not isinstance(source, np.ndarray):
        return _at(x, source)
    back = _inverse(np.where(source < 0, x.shape[1], source), x.shape[1] + 1)[:-1]
    take = jax.custom_vjp(lambda x: _at(x, source))
    take.defvjp(lambda x: (_at(x, source), None), lambda _, cotangent: (_at(cotangent, back),))
    return take(x)
