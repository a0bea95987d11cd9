"""The position of a run in its phases and their examples."""

import dataclasses
from collections.abc import Sequence
from typing import Self


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a run.

    Attributes:
      step: The number of finished steps, one batch each.
      phase: The index of the phase, from 0.
      next: The index of the next example of the phase, from 0.
      left: Entry i is the value of `next` when the run last left phase i, or 0 if the run has not left phase i. A
        resumed run can return to an earlier phase if the lengths of the phases have changed.
    """

    step: int = 0
    phase: int = 0
    next: int = 0
    left: Sequence[int] = dataclasses.field(default=(), compare=False)

    def enter(self, phase: int) -> Self:
        """Returns the position at the next example of another phase."""
        left = [*self.left, *[0] * (max(self.phase, phase) + 1 - len(self.left))]
        left[self.phase] = self.next
        return dataclasses.replace(self, phase=phase, next=left[phase], left=left)

    def after(self, end: int) -> Self:
        """Returns the position after a step. `end` is the index of the first example after its batch."""
        return dataclasses.replace(self, step=self.step + 1, next=end)
