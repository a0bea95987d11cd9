"""Several corpora in one stream of examples, in given proportions."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.hashing import hash_int, permute
from bertjax.data.packed import PackedExamples
from bertjax.data.pretraining import PretrainingExamples

# Over so many examples the proportions hold exactly (to one part in BLOCK).
BLOCK = 4096
# Stream number of the order within a block; those of data/hashing.py are small.
_ORDER = 0x6D6978


def block_counts(weights: Sequence[float]) -> np.ndarray:
    """How many of BLOCK examples each component gets: int64, in proportion, by largest remainder, at least 1 each."""
    shares = np.asarray(weights, np.float64) / np.sum(weights) * BLOCK
    counts = np.maximum(np.floor(shares).astype(np.int64), 1)
    while counts.sum() < BLOCK:
        counts[(shares - counts).argmax()] += 1
    while counts.sum() > BLOCK:  # rare components were raised to 1: the others pay
        counts[np.where(counts > 1, shares - counts, np.inf).argmin()] -= 1
    return counts


class MixedExamples:
    """Example n of a mixture: a pure function of n, like its components.

    Each block of BLOCK consecutive numbers holds every component in its exact proportion, in an order permuted by the
    block's number. Of a component with c examples a block, block b uses the examples c·b to c·b + c - 1: none is left
    out and none comes twice.

    Args:
      components: examples of each corpus, of equal shapes; or packed rows, of which the shares then are.
      weights: their shares of the stream; they need not add up to 1.
      seed, phase: of the order within blocks.
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

    @property
    def cycle_length(self) -> int:
        """Examples until every component has gone through its own cycle at least once."""
        blocks = [-(-c.cycle_length // int(n)) for c, n in zip(self._components, self._counts, strict=True)]
        return max(blocks) * BLOCK

    @property
    def report(self) -> dict[str, object]:
        """The reports of the components, in order."""
        return {'components': [component.report for component in self._components]}

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which component each number leads to, and which of its examples: int64 [B], int64 [B]."""
        indices = np.asarray(indices, np.int64)
        block, place = np.divmod(indices, BLOCK)
        keys = np.array([hash_int(self._key, _ORDER, int(b)) for b in block], np.uint64)
        place = permute(place, BLOCK, keys).astype(np.int64)
        component = np.searchsorted(self._ends, place, side='right')
        rank = place - (self._ends - self._counts)[component]
        return component, block * self._counts[component] + rank

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of these numbers, a row each."""
        component, numbers = self.locate(indices)
        rows: dict[str, np.ndarray] = {}
        for c in np.unique(component):
            chosen = component == c
            for name, x in self._components[c].batch(numbers[chosen]).items():
                rows.setdefault(name, np.zeros((len(component), *x.shape[1:]), x.dtype))[chosen] = x
        return rows
