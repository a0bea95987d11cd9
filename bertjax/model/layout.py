"""Layouts: the slots of a batch's sequences in packed rows.

This module imports no JAX, because `data/strata.py` uses it.
"""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
    """Fixed slots for N sequences in T positions.

    A batch of R·N sequences repeats the layout R times, so all devices and all accumulation steps have the same layout.
    """

    row_groups: tuple[tuple[int, int], ...]  # (number of rows, length) of each group of rows; T positions in total
    slots: tuple[tuple[int, int], ...]  # (start, capacity) of each sequence, in batch order, each within one row

    @property
    def positions(self) -> int:
        """T, the number of positions."""
        return sum(rows * length for rows, length in self.row_groups)

    @property
    def mean_length(self) -> float:
        """The mean number of positions per sequence."""
        return self.positions / len(self.slots)

    @property
    def longest(self) -> int:
        """The largest capacity."""
        return int(self.capacities.max())

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """int32 [N], the first position of each sequence."""
        return np.asarray(self.slots, np.int32)[:, 0]

    @functools.cached_property
    def capacities(self) -> np.ndarray:
        """int32 [N], the maximum number of tokens in each slot."""
        return np.asarray(self.slots, np.int32)[:, 1]

    @functools.cached_property
    def sequence_ids(self) -> np.ndarray:
        """int32 [T], the sequence that each position belongs to, or -1 at positions without a sequence."""
        ids = np.full(self.positions, -1, np.int32)
        for number, (start, capacity) in enumerate(self.slots):
            ids[start : start + capacity] = number
        return ids

    @functools.cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [T], the index of each position in its sequence, or 0 at positions without a sequence."""
        positions = np.arange(self.positions, dtype=np.int32) - self.starts[self.sequence_ids]
        return np.where(self.sequence_ids < 0, 0, positions)

    @functools.cached_property
    def rows(self) -> list[list[tuple[int, list[int]]]]:
        """The rows of each group, as (first position, starts of the row's sequences in ascending order)."""
        groups, first = [], 0
        for count, length in self.row_groups:
            begins = range(first, first + count * length, length)
            groups.append([(b, sorted(x for x in self.starts.tolist() if b <= x < b + length)) for b in begins])
            first += count * length
        return groups

    @functools.cached_property
    def most_sequences(self) -> list[int]:
        """For each group, the maximum number E of sequences in one of its rows."""
        return [max(len(starts) for _, starts in rows) for rows in self.rows]

    @functools.cached_property
    def cls_positions(self) -> np.ndarray:
        """int32 [Q], for each row the starts of its sequences, filled up to `most_sequences` with the row's start."""
        padded = [
            starts + [begin] * (most - len(starts))
            for rows, most in zip(self.rows, self.most_sequences, strict=True)
            for begin, starts in rows
        ]
        return np.concatenate(padded).astype(np.int32)
