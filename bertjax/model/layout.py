"""Where the sequences of a batch lie in packed rows. Without JAX, so that `data/` can choose a layout."""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
    """Fixed slots of N sequences in T positions, which are groups of rows of one length each.

    A batch of R·N sequences has the layout R times: each device, and each part of an accumulation, is alike.

    Attributes:
      row_groups: (rows, length) of each group of rows, one after the other: T positions in all.
      slots: (start among the T positions, capacity) of each sequence, in the order of the batch, each within one row.
    """

    row_groups: tuple[tuple[int, int], ...]
    slots: tuple[tuple[int, int], ...]

    @property
    def positions(self) -> int:
        """T."""
        return sum(rows * length for rows, length in self.row_groups)

    @property
    def mean_length(self) -> float:
        """Positions per sequence."""
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
        """int32 [N], the most tokens of each sequence."""
        return np.asarray(self.slots, np.int32)[:, 1]

    @functools.cached_property
    def sequence_ids(self) -> np.ndarray:
        """int32 [T], the sequence that each position belongs to; -1 for none."""
        ids = np.full(self.positions, -1, np.int32)
        for number, (start, capacity) in enumerate(self.slots):
            ids[start : start + capacity] = number
        return ids

    @functools.cached_property
    def position_ids(self) -> np.ndarray:
        """int32 [T], the place of each position in its own sequence; 0 without one."""
        positions = np.arange(self.positions, dtype=np.int32) - self.starts[self.sequence_ids]
        return np.where(self.sequence_ids < 0, 0, positions)

    @functools.cached_property
    def rows(self) -> list[list[tuple[int, list[int]]]]:
        """Of each group of rows: (first position, ascending starts of the sequences) of each row."""
        groups, first = [], 0
        for count, length in self.row_groups:
            begins = range(first, first + count * length, length)
            groups.append([(b, sorted(x for x in self.starts.tolist() if b <= x < b + length)) for b in begins])
            first += count * length
        return groups

    @functools.cached_property
    def most_sequences(self) -> list[int]:
        """E of each group of rows, the most sequences of one of its rows."""
        return [max(len(starts) for _, starts in rows) for rows in self.rows]

    @functools.cached_property
    def cls_positions(self) -> np.ndarray:
        """int32 [Q], where each sequence of each row starts, E a row; the row's first position for missing ones."""
        padded = [
            starts + [begin] * (most - len(starts))
            for rows, most in zip(self.rows, self.most_sequences, strict=True)
            for begin, starts in rows
        ]
        return np.concatenate(padded).astype(np.int32)
