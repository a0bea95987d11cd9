"""The content of a checkpoint besides its arrays: the position of the run, and the resolved config."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a run.

    Attributes:
      step: The number of finished steps, one batch each.
      phase: The number of the phase, from 0.
      next: The number of the next example of the phase.
    """

    step: int = 0
    phase: int = 0
    next: int = 0


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """The position and the resolved config in a checkpoint, without its arrays."""

    position: Position
    config: dict[str, Any]

    @property
    def eval_params(self) -> str:
        """The part of the state to evaluate and export: the average of the weights if the run has one."""
        return 'ema' if self.config.get('ema_decay') else 'params'
