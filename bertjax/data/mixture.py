"""Mixes the pre-training examples of several corpora."""

import functools
from collections.abc import Sequence

import numpy as np

from bertjax.data.hashing import hash_bits, hash_int, permute
from bertjax.data.packing import PackedExamples
from bertjax.data.pretraining import PretrainingExamples

# The number of examples in a block. All blocks have the same proportions, which differ little from the weights.
BLOCK = 4096
# The random stream of the order within a block. The streams of data/hashing.py have other, small numbers.
_ORDER = 0x6D6978


def block_counts(weights: Sequence[float]) -> np.ndarray:
    """Returns the number of examples of each component in a block, int64, in proportion to `weights`.

    Each number is at least 1. The numbers are rounded by the largest-remainder method.
    """
    shares = np.asarray(weights, np.float64) / np.sum(weights) * BLOCK
    counts = np.maximum(np.floor(shares).astype(np.int64), 1)
    while counts.sum() < BLOCK:
        counts[(shares - counts).argmax()] += 1
    while counts.sum() > BLOCK:  # some components were raised to 1, so others are reduced
        counts[np.where(counts > 1, shares - counts, np.inf).argmin()] -= 1
    return counts


class MixedExamples:
    """The examples of a mixture. Example n is a pure function of n.

    Block b consists of the examples b·BLOCK, ..., (b + 1)·BLOCK - 1. All blocks contain the same number of examples of
    each component, in an order that depends on b. With c examples of a component per block, block b has the component's
    examples c·b, ..., c·b + c - 1. So each example of a component occurs once.

    Args:
      components: The examples (or packed rows) of each corpus, with equal shapes.
      weights: The relative shares of examples (or packed rows).
      seed, phase: Integers that determine the order within blocks.
    """

    def __init__(
        self,
        components: Sequence[PretrainingExamples] | Sequence[PackedExamples],
        weights: Sequence[float],
        *,
        seed: int,
        phase: int,
    ):
        self._components = list(components)
        self._counts = block_counts(weights)
        self._ends = np.cumsum(self._counts)
        self._key = hash_int(seed, _ORDER, phase)

    @functools.cached_property
    def cycle_length(self) -> int:
        """The number of examples after which every component has completed a cycle."""
        blocks = [-(-c.cycle_length // int(n)) for c, n in zip(self._components, self._counts, strict=True)]
        return max(blocks) * BLOCK

    @property
    def report(self) -> dict[str, object]:
        """The reports of the components, in order."""
        return {'components': [component.report for component in self._components]}

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the component of each example, and the example's number in that component, int64 [B] each."""
        indices = np.asarray(indices, np.int64)
        block, slot = np.divmod(indices, BLOCK)
        slot = permute(slot, BLOCK, hash_bits(self._key, _ORDER, block))
        component = np.searchsorted(self._ends, slot, side='right')
        rank = slot - (self._ends - self._counts)[component]
        return component, block * self._counts[component] + rank

    def batch(self, indices: np.ndarray, rates: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the examples (or packed rows) `indices`, int64 [B], in the format of `batch.py`.

        For `rates`, see `PretrainingExamples.batch`.
        """
        _ = self.cycle_length  # needs the plans of all components, so the first batch makes them all
        component, numbers = self.locate(indices)
        rows: dict[str, np.ndarray] = {}
        for c in np.unique(component):
            selected = component == c
            batch = self._components[c].batch(numbers[selected], None if rates is None else rates[selected])
            for name, x in batch.items():
                rows.setdefault(name, np.zeros((len(component), *x.shape[1:]), x.dtype))[selected] = x
        return rows
