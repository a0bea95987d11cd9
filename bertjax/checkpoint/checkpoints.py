"""Checkpoints of a run: Orbax behind a handful of methods."""

import dataclasses
import pathlib
import shutil
import threading
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertjax.checkpoint import checksums
from bertjax.errors import UserError

DAMAGED = 'damaged'


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run stands: `step` batches seen; in `phase` (from 0) the next example is number `next`."""

    step: int = 0
    phase: int = 0
    next: int = 0


@dataclasses.dataclass(frozen=True)
class Saved:
    """What `latest` found: the position and the resolved config at the time, before the arrays are read."""

    position: Position
    config: dict[str, Any]


class Checkpoints:
    """The folder `checkpoints/`: a sub-folder for each step with the items state, position and config, and checksums.

    Saving is asynchronous: the arrays are copied to the host, then a thread writes them, then the checksums, and
    removes what is no longer kept (all but the newest `keep` and the one with the lowest cost). A save that failed
    raises at the next `save` or at `close`.

    Args:
      directory: the folder, made when absent.
      keep: how many of the newest steps.
      log: takes a line about each checkpoint that is removed or set aside.

    Raises:
      UserError: `keep` below 1, or a folder that cannot be written to.
    """

    def __init__(self, directory: str | pathlib.Path, *, keep: int, log: Callable[[str], None] = print):
        if keep < 1:
            raise UserError('config.checkpoint_keep', str(keep), 'a number of at least 1', 'set it to 1 or more')
        self.directory = pathlib.Path(directory).resolve()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            mend = 'choose another --workdir, or make room there'
            raise UserError(str(self.directory), error.strerror, 'a folder that can be written to', mend) from None
        self._keep = keep
        self._log = log
        self._finisher: threading.Thread | None = None
        self._failure: BaseException | None = None
        if jax.process_index() == 0:
            self._remove_unfinished()
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            self.directory,
            item_names=('state', 'position', 'config'),
            options=ocp.CheckpointManagerOptions(enable_async_checkpointing=True, create=True),
        )

    def steps(self) -> list[int]:
        """Finished steps, ascending."""
        found = [path for path in self.directory.iterdir() if path.name.isdigit() and checksums.is_finished(path)]
        return sorted(int(path.name) for path in found)

    def _remove_unfinished(self) -> None:
        """Removes what a killed process left half-written: steps without checksums, Orbax's temporary folders."""
        for path in self.directory.iterdir():
            if path.is_dir() and path.name != DAMAGED and not checksums.is_finished(path):
                self._log(f'checkpoint {path.name} was never finished: it is removed')
                shutil.rmtree(path)

    def latest(self) -> Saved | None:
        """The newest whole checkpoint, None when there is none at all.

        A damaged one is reported and moved to `checkpoints/damaged/`, and the one before it is tried.

        Raises:
          UserError: there are checkpoints and all of them are damaged.
        """
        for step in reversed(self.steps()):
            if self._is_whole(step):
                return self._saved(step)
        damaged = list((self.directory / DAMAGED).glob('*'))
        if damaged:
            raise UserError(
                str(self.directory),
                f'{len(damaged)} checkpoint(s), all damaged',
                'at least one whole checkpoint',
                f'they are in {self.directory / DAMAGED}: start again in another --workdir',
            )
        return None

    def _saved(self, step: int) -> Saved:
        args = ocp.args.Composite(position=ocp.args.JsonRestore(), config=ocp.args.JsonRestore())
        items = self._manager.restore(step, args=args)
        return Saved(Position(**items['position']), items['config'])

    def chosen(self, step: int, *, best: bool = False) -> Saved | None:
        """The checkpoint of `step`; with 0 the best (see `best`) if that is asked for and known, else the newest.

        None when there is none at all.

        Raises:
          UserError: no whole checkpoint of that step; or see `latest`.
        """
        if not step:
            latest = self.latest()
            lowest = self.best() if best and latest is not None else None
            return latest if lowest is None else self._saved(lowest)
        if step not in self.steps() or not self._is_whole(step):
            there = ', '.join(map(str, self.steps())) or 'none'
            mend = 'choose one of them, or 0 for the newest' if self.steps() else 'train first'
            raise UserError('config.step', f'{step}, which {self.directory} does not have', f'one of {there}', mend)
        return self._saved(step)

    def _is_whole(self, step: int) -> bool:
        """Whether a finished step is as it was written; one that is not is moved to `checkpoints/damaged/`."""
        path = self.directory / str(step)
        wrong = checksums.damage(path)
        if wrong is None:
            return True
        self._log(f'checkpoint {step} is damaged ({wrong}): it is set aside, using another one')
        target = self.directory / DAMAGED / str(step)
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
        self._manager.reload()
        return False

    def restore(self, step: int, template: Any) -> Any:
        """The arrays of the state of a finished step, on the devices and in the shapes of `template` (abstract)."""
        args = ocp.args.Composite(state=ocp.args.StandardRestore(template))
        return self._manager.restore(step, args=args)['state']

    def save(self, state: Any, position: Position, config: dict[str, Any], cost: float | None) -> None:
        """Starts to save; returns when the arrays may be overwritten. A step that is there already is left alone.

        `cost` is what `best` goes by; None where it was not measured.
        """
        self.wait()
        if position.step in self._manager.all_steps():
            return
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            position=ocp.args.JsonSave(dataclasses.asdict(position)),
            config=ocp.args.JsonSave(config),
        )
        self._manager.save(position.step, args=args)
        self._finisher = threading.Thread(target=self._finish, args=(position.step, cost), name='checkpoint')
        self._finisher.start()

    def _finish(self, step: int, cost: float | None) -> None:
        try:
            self._manager.wait_until_finished()
            if jax.process_index() == 0:
                checksums.write_checksums(self.directory / str(step), cost)
                for old in self._superseded():
                    self._manager.delete(old)
        except BaseException as error:  # raised by wait(), in the training loop's thread
            self._failure = error

    def _superseded(self) -> list[int]:
        best = self._lowest_cost()
        return [step for step in self.steps()[: -self._keep] if step != best]

    def best(self) -> int | None:
        """The whole step with the lowest cost, the later of two equal ones; None where no cost was measured."""
        step = self._lowest_cost()
        while step is not None and not self._is_whole(step):
            step = self._lowest_cost()
        return step

    def _lowest_cost(self) -> int | None:
        costs = {step: checksums.cost(self.directory / str(step)) for step in self.steps()}
        measured = [step for step in costs if costs[step] is not None]
        return min(measured, key=lambda step: (costs[step], -step), default=None)

    def wait(self) -> None:
        """Returns when the save under way is finished; raises what went wrong with it."""
        if self._finisher is not None:
            self._finisher.join()
            self._finisher = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """Waits for the save under way, then closes Orbax."""
        try:
            self.wait()
        finally:
            self._manager.close()
