"""Early stopping of a run that no longer improves on dev."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

STATE_KEY = 'patience_used'  # the key of the counter's state in the config of a checkpoint


class EarlyStopping:
    """Counts the evaluations since the best one. Only evaluations after a step of the last phase are passed to `note`.

    Attributes:
      limit: The run ends after this many evaluations in a row without improvement; 0 for no limit.
    """

    def __init__(self, limit: int, config: Mapping[str, Any] = MappingProxyType({})):
        """Creates a counter, or restores it from the config of a checkpoint."""
        state = config.get(STATE_KEY, {'best': None, 'waited': 0})
        self.limit, self._best, self._waited = limit, state['best'], state['waited']

    def note(self, cost: float | None) -> bool:
        """Records a cost (lower is better), and returns whether it is the lowest so far; False for None and NaN."""
        better = cost is not None and not math.isnan(cost) and (self._best is None or cost < self._best)
        self._best, self._waited = (cost, 0) if better else (self._best, self._waited + 1)
        return better

    @property
    def should_stop(self) -> bool:
        """Whether the run has reached the limit."""
        return 0 < self.limit <= self._waited

    @property
    def state(self) -> dict[str, Any]:
        """The JSON state for a checkpoint; empty without a limit."""
        return {STATE_KEY: {'best': self._best, 'waited': self._waited}} if self.limit else {}
