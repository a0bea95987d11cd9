"""Changes the mask rate of pre-training examples during a phase."""

import dataclasses

import numpy as np

from bertjax.data.mixture import MixedExamples
from bertjax.data.packing import PackedExamples
from bertjax.data.pretraining import PretrainingExamples


@dataclasses.dataclass(frozen=True)
class ScheduledMasks:
    """The examples (or packed rows) of a phase, with a mask rate that changes linearly with the example number.

    The rate of example n depends only on n and the attributes, so a resumed run has the same rates. The rates end at
    `last` also after a change of the batch size, because `offset` is then not 0.

    Attributes:
      examples: The examples. The mask rate in their options is the higher of `first` and `last`.
      first, last: The mask rates of the first and of the last example.
      count: The number of examples in the phase, with its current batch sizes.
      offset: The number of examples that the finished steps would have with these batch sizes, minus their number.
    """

    examples: PretrainingExamples | PackedExamples | MixedExamples
    first: float
    last: float
    count: int
    offset: int = 0

    def rates(self, indices: np.ndarray) -> np.ndarray:
        """Returns the mask rate of each example, float64 [B]. Examples after the end of the phase have rate `last`."""
        progress = np.clip((np.asarray(indices) + self.offset) / max(self.count - 1, 1), 0, 1)
        return self.first + (self.last - self.first) * progress

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the examples `indices`, int64 [B], in the format of `batch.py`."""
        return self.examples.batch(indices, self.rates(indices))
