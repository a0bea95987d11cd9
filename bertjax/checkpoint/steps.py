"""Which checkpoint of a folder is meant: the newest, the best, of those that are whole."""

import itertools
import pathlib
from collections.abc import Callable

from bertjax.checkpoint import checksums, unfinished
from bertjax.checkpoint.unfinished import DAMAGED
from bertjax.errors import UserError


class Steps:
    """The steps that were written to their end. One that is found damaged is said and, unless `reading`, set aside.

    Args:
      directory: with a folder for each step.
      log: takes a line about each that is damaged.
      reading: nothing is moved; those that are damaged are passed over.
      moved: called when one has been set aside.
    """

    def __init__(
        self, directory: pathlib.Path, log: Callable[[str], None], *, reading: bool, moved: Callable[[], object]
    ):
        self._directory, self._log, self._reading, self._moved = directory, log, reading, moved
        self._damaged: set[int] = set()  # where nothing is moved

    def finished(self) -> list[int]:
        """Finished steps, ascending."""
        return [step for step in unfinished.finished_steps(self._directory) if step not in self._damaged]

    def newest(self) -> int:
        """The newest whole step; -1 where there is none at all.

        Raises:
          UserError: there are checkpoints, or what may be some, and none of them is whole.
        """
        for step in reversed(self.finished()):
            if self.is_whole(step):
                return step
        if self._directory.is_dir():
            self._refuse_leftovers()
        return -1

    def _refuse_leftovers(self) -> None:
        """A run that has lost its checkpoints does not begin anew as if it had had none."""
        damaged = len(list((self._directory / DAMAGED).glob('*'))) + len(self._damaged)
        if damaged:
            raise UserError(
                str(self._directory),
                f'{damaged} checkpoint(s), all damaged',
                'at least one whole checkpoint',
                f'they are in {self._directory / DAMAGED}: start again in another --workdir',
            )
        names = [path.name for path in unfinished.unknown(self._directory) if unfinished.may_be_checkpoint(path)]
        if names:
            raise UserError(
                str(self._directory),
                f'{len(names)} folder(s) that may be checkpoints ({", ".join(names[:3])}), none of them whole',
                f'at least one step with its {checksums.FILE}',
                f'put the {checksums.FILE} or the name back that it had; to begin anew, move the folder(s) elsewhere',
            )

    def is_whole(self, step: int) -> bool:
        """Whether a finished step is as it was written; one that is not is moved to `checkpoints/damaged/`."""
        wrong = checksums.damage(self._directory / str(step))
        if wrong is None:
            return True
        then = 'it is left out' if self._reading else 'it is set aside'
        self._log(f'checkpoint {step} is damaged ({wrong}): {then}, using another one')
        if self._reading:
            self._damaged.add(step)
        else:
            self.set_aside(step)
        return False

    def set_aside(self, step: int) -> None:
        """Moves the folder of a step to `damaged/`, under a name that is free there."""
        names = itertools.chain([str(step)], (f'{step}-{number}' for number in itertools.count(2)))
        target = next(path for name in names if not (path := self._directory / DAMAGED / name).exists())
        target.parent.mkdir(exist_ok=True)
        (self._directory / str(step)).rename(target)
        self._moved()

    def best(self) -> int:
        """The whole step with the lowest cost, the later of two equal ones; -1 where no cost was measured."""
        step = self._lowest_cost()
        while step is not None and not self.is_whole(step):
            step = self._lowest_cost()
        return -1 if step is None else step

    def _lowest_cost(self) -> int | None:
        costs = {step: checksums.cost(self._directory / str(step)) for step in self.finished()}
        measured = [step for step in costs if costs[step] is not None]
        return min(measured, key=lambda step: (costs[step], -step), default=None)

    def superseded(self, keep: int) -> list[int]:
        """All but the newest `keep` and the best."""
        best = self._lowest_cost()
        return [step for step in self.finished()[:-keep] if step != best]
