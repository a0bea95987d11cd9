"""Row packing: several sequences share a row of the encoder. The results equal those of separate rows up to rounding.

The data pipeline packs the rows of pre-training (`data/packing.py`). Fine-tuning uses the same slots in every batch
(`data/strata.py`), and inference packs sequences by their lengths (`data/packing_plan.py`).
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
    """The base class of PackedLayout and BatchLayout, with the functions that pack and unpack arrays.

    `sequence_ids`, `position_ids`, `starts` and `capacities` are JAX arrays for R rows (see `BatchLayout`), or NumPy
    arrays for one layout (see `Layout`). A row or layout has T positions and N sequences.
    """

    def pack(self, x: jax.Array) -> jax.Array:
        """Packs int x [R·N, S], one sequence per row, into [R, T], with zeros at positions without a sequence."""
        ids, N, S = self.sequence_ids, self.starts.shape[-1], x.shape[1]
        inside = (ids >= 0) & (ids < N)
        return _gather(x.reshape(-1, N * S), _where(inside, ids * S + self.position_ids))

    def unpack(self, x: jax.Array, length: int) -> jax.Array:
        """Unpacks x [R, T, D] into [R·N, S, D] for S = `length`, with zeros beyond a slot's capacity."""
        positions = np.arange(length, dtype=np.int32)
        source = _where(positions < self.capacities[..., None], self.starts[..., None] + positions)
        return _take(x, source.reshape(*source.shape[:-2], -1)).reshape(-1, length, x.shape[-1])


@dataclasses.dataclass(frozen=True)
class PackedLayout(_Packing, Layout):
    """A layout with the same slots in every batch. Only attention splits the T positions into rows."""

    def gather_cls(self, x: jax.Array) -> jax.Array:
        """Gathers the first positions of all sequences (`cls_positions`): [R, T, ...] -> [R, Q, ...]."""
        return _take(x, self.cls_positions)

    def unpack_cls(self, x: jax.Array) -> jax.Array:
        """Unpacks the result of `gather_cls` into batch order: [R, Q, D] -> [R·N, 1, D]."""
        return _take(x, _inverse(self.cls_positions, self.positions)[self.starts]).reshape(-1, 1, x.shape[-1])

    def group(self, x: jax.Array, index: int) -> jax.Array:
        """Selects a group of rows.

        x [R, T, ...] becomes [R·rows, length, ...], and x [R, Q, ...] becomes [R·rows, E, ...] (see `most_sequences`).
        """
        widths = [length for _, length in self.row_groups] if x.shape[1] == self.positions else self.most_sequences
        sizes = [rows * width for (rows, _), width in zip(self.row_groups, widths, strict=True)]
        begin = sum(sizes[:index])
        return x[:, begin : begin + sizes[index]].reshape(-1, widths[index], *x.shape[2:])

    def join(self, groups: Sequence[jax.Array], count: int) -> jax.Array:
        """Joins the groups of R = `count` layouts into [R, T, ...] or [R, Q, ...]."""
        return jnp.concatenate([x.reshape(count, -1, *x.shape[2:]) for x in groups], axis=1)

    def dropout(self, dropout: Dropout) -> Dropout:
        """Expands a Dropout with example ids of sequences [R·N] to one with example ids of positions [R, T]."""
        example_ids = dropout.example_ids.reshape(-1, len(self.slots))[:, np.maximum(self.sequence_ids, 0)]
        positions = jnp.broadcast_to(self.position_ids.astype(np.uint32), example_ids.shape)
        return dropout.replace(example_ids=example_ids, positions=positions)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchLayout(_Packing):
    """The layout of one batch of packed rows. All arrays are int32."""

    # [R, T], the sequence of each position, counted from 1, and 0 for padding; in the result of `from_mask`, counted
    # from 0, and N for padding.
    sequence_ids: jax.Array
    position_ids: jax.Array  # [R, T], the index of each position in its sequence
    starts: jax.Array  # [R, N], the first position of each sequence
    capacities: jax.Array | None = None  # [R, N], the number of tokens of each sequence, for `unpack` only

    @classmethod
    def from_mask(cls, mask: jax.Array, count: int) -> 'BatchLayout':
        """Puts every N = `count` consecutive sequences of a mask [B, S] into one row, without gaps.

        N must divide B. A row must have at most S tokens in total.
        """
        lengths = mask.sum(-1).reshape(-1, count)
        ends = jnp.cumsum(lengths, axis=1)  # [R, N]
        starts = jnp.pad(ends, ((0, 0), (1, 0)))  # [R, N + 1]; the last one is the start of the padding
        positions = jnp.arange(mask.shape[1])
        ids = (positions[:, None] >= ends[:, None]).sum(-1)  # [R, S]; N for padding
        return cls(ids, positions - jnp.take_along_axis(starts, ids, axis=1), starts[:, :-1], lengths)

    def gather_cls(self, x: jax.Array) -> jax.Array:
        """Gathers the first position of each sequence: [R, T, D] -> [R, N, D]."""
        return gather_positions(x, self.starts)

    @property
    def longest(self) -> int:
        """The length of a row, which no sequence exceeds."""
        return self.sequence_ids.shape[1]


def _where(condition: Any, source: Any) -> Any:
    """Returns `source` where the condition holds, else -1. The result is a NumPy array for NumPy arguments."""
    return (np if isinstance(condition, np.ndarray) else jnp).where(condition, source, -1)


def _inverse(source: np.ndarray, count: int) -> np.ndarray:
    """Returns int32 [count], the first index in `source` of each number below `count`, or -1 for absent numbers."""
    positions = np.full(count, -1, np.int32)
    positions[source[::-1]] = np.arange(len(source), dtype=np.int32)[::-1]
    return positions


def _gather(x: jax.Array, source: Any) -> jax.Array:
    """Gathers x [R, P, ...] at positions `source`, [Q] or [R, Q], into [R, Q, ...]. A position of -1 gives zeros."""
    if isinstance(source, np.ndarray):
        gathered, present = x[:, np.maximum(source, 0)], (source >= 0)[None]
        if present.all():
            return gathered
    else:
        gathered, present = jax.vmap(lambda row, at: row[at])(x, jnp.maximum(source, 0)), source >= 0
    return jnp.where(present.reshape(*present.shape, *[1] * (x.ndim - 2)), gathered, jnp.zeros((), x.dtype))


def _take(x: jax.Array, source: Any) -> jax.Array:
    """Gathers as `_gather` does. For a NumPy `source`, the gradient is a gather too, of first occurrences only."""
    if not isinstance(source, np.ndarray):
        return _gather(x, source)
    back = _inverse(np.where(source < 0, x.shape[1], source), x.shape[1] + 1)[:-1]
    take = jax.custom_vjp(lambda x: _gather(x, source))
    take.defvjp(lambda x: (_gather(x, source), None), lambda _, cotangent: (_gather(cotangent, back),))
    return take(x)
