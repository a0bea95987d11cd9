"""A mask rate that changes during a phase."""

import dataclasses

import numpy as np

from bertjax.data.mixture import MixedExamples
from bertjax.data.packed import PackedExamples
from bertjax.data.pretraining import PretrainingExamples


@dataclasses.dataclass(frozen=True)
class ScheduledMasks:
    """The examples (or packed rows) of a phase, with a mask rate that is linear in their number.

    The rate of example n is a pure function of n and the fields, so it does not depend on where a run resumes.

    Attributes:
      examples: The examples, whose own rate is the higher of the two.
      first, last: The rates of the first and of the last example.
      count: The number of examples in the phase.
    """

    examples: PretrainingExamples | PackedExamples | MixedExamples
    first: float
    last: float
    count: int

    def rates(self, indices: np.ndarray) -> np.ndarray:
        """Returns the mask rate of each example, float64 [B]; after the end it remains that of the last one."""
        progress = np.minimum(np.asarray(indices) / max(self.count - 1, 1), 1)
        return self.first + (self.last - self.first) * progress

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the examples `indices`, int64 [B], in the format of `batch.py`."""
        return self.examples.batch(indices, self.rates(indices))
