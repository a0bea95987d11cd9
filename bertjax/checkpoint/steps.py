"""Selection of the newest or the best undamaged checkpoint in a folder."""

import itertools
import pathlib
from collections.abc import Callable

from bertjax.checkpoint import checksums, unfinished
from bertjax.checkpoint.unfinished import DAMAGED
from bertjax.errors import UserError


class Steps:
    """The finished steps in a folder. A damaged step is logged and, unless `read_only`, moved to `damaged/`.

    Args:
      directory: The folder, with a sub-folder per step.
      log: A function that logs a line about each damaged step.
      read_only: Whether to skip damaged steps instead of moving them.
      on_move: A function that is called after a step was moved.
    """

    def __init__(
        self, directory: pathlib.Path, log: Callable[[str], None], *, read_only: bool, on_move: Callable[[], object]
    ):
        self._directory, self._log, self._read_only, self._on_move = directory, log, read_only, on_move
        self._damaged: set[int] = set()  # the damaged steps that are skipped if `read_only`

    def finished(self) -> list[int]:
        """Returns the finished steps, ascending."""
        return [step for step in unfinished.finished_steps(self._directory) if step not in self._damaged]

    def newest(self) -> int:
        """Returns the newest undamaged step, or -1 if there are no checkpoints.

        Raises:
          UserError: There are checkpoints, or folders that may be checkpoints, but all are damaged.
        """
        for step in reversed(self.finished()):
            if self.is_undamaged(step):
                return step
        if self._directory.is_dir():
            self._check_for_lost_checkpoints()
        return -1

    def _check_for_lost_checkpoints(self) -> None:
        """Raises UserError if a run has lost its checkpoints, so that it does not silently start from scratch."""
        damaged = len(list((self._directory / DAMAGED).glob('*'))) + len(self._damaged)
        if damaged:
            raise UserError(
                str(self._directory),
                f'{damaged} checkpoint(s), all damaged',
                'at least one undamaged checkpoint',
                f'start again in another --workdir; the damaged checkpoints are in {self._directory / DAMAGED}',
            )
        folders = filter(unfinished.may_be_checkpoint, unfinished.unknown_folders(self._directory))
        names = [path.name for path in folders]
        if names:
            raise UserError(
                str(self._directory),
                f'{len(names)} folder(s) that may be checkpoints ({", ".join(names[:3])}), all damaged or renamed',
                f'at least one step with its {checksums.FILE}',
                f'restore the {checksums.FILE} or the original name, or move the folder(s) away to start from scratch',
            )

    def is_undamaged(self, step: int) -> bool:
        """Returns whether a finished step is undamaged; moves a damaged one to `damaged/`."""
        damage = checksums.find_damage(self._directory / str(step))
        if damage is None:
            return True
        action = 'it is skipped' if self._read_only else 'it is set aside'
        self._log(f'checkpoint {step} is damaged ({damage}): {action}, using another one')
        if self._read_only:
            self._damaged.add(step)
        else:
            self.set_aside(step)
        return False

    def set_aside(self, step: int) -> None:
        """Moves the folder of a step to `damaged/`, under an unused name."""
        names = itertools.chain([str(step)], (f'{step}-{number}' for number in itertools.count(2)))
        target = next(path for name in names if not (path := self._directory / DAMAGED / name).exists())
        target.parent.mkdir(exist_ok=True)
        (self._directory / str(step)).rename(target)
        self._on_move()

    def best(self) -> int:
        """Returns the undamaged step with the lowest cost (the later one if equal), or -1 if no cost was measured."""
        step = self._lowest_cost()
        while step is not None and not self.is_undamaged(step):
            step = self._lowest_cost()
        return -1 if step is None else step

    def _lowest_cost(self) -> int | None:
        costs = {step: checksums.read_cost(self._directory / str(step)) for step in self.finished()}
        measured = [step for step in costs if costs[step] is not None]
        return min(measured, key=lambda step: (costs[step], -step), default=None)

    def superseded(self, keep: int) -> list[int]:
        """Returns all steps except the newest `keep` and the best one."""
        best = self._lowest_cost()
        return [step for step in self.finished()[:-keep] if step != best]
