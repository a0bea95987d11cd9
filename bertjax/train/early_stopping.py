"""Early stopping: when a run that no longer gets better on dev ends."""

from typing import Any

STATE_KEY = 'patience_used'  # in the config of a checkpoint


class EarlyStopping:
    """Counts the evaluations since the best one.

    The evaluation of step 0, before any training, does not count.

    Attributes:
      limit: the run ends when so many evaluations in a row were no better than the best before; 0 for never.
    """

    def __init__(self, limit: int, saved: dict[str, Any] | None = None):
        """`saved` is the `state` that a checkpoint has of an earlier process."""
        self.limit = limit
        self._best: float | None = saved['best'] if saved else None
        self._waited: int = saved['waited'] if saved else 0

    def note(self, cost: float | None) -> bool:
        """Takes the cost of an evaluation, lower is better; returns whether it is the best so far."""
        better = cost is not None and (self._best is None or cost < self._best)
        self._best, self._waited = (cost, 0) if better else (self._best, self._waited + 1)
        return better

    @property
    def over(self) -> bool:
        """Whether the run ends here."""
        return 0 < self.limit <= self._waited

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON; nothing where there is no limit."""
        return {STATE_KEY: {'best': self._best, 'waited': self._waited}} if self.limit else {}
