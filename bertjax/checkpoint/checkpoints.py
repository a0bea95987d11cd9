"""Checkpoints of a run: Orbax behind a handful of methods."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import threading
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertjax.checkpoint import checksums, unfinished
from bertjax.checkpoint.readback import Structure, check_readable, structure
from bertjax.checkpoint.steps import Steps
from bertjax.checkpoint.unfinished import DAMAGED
from bertjax.errors import UserError
from bertjax.files.atomic import make_directory
from bertjax.files.disk import writing
from bertjax.files.paths import without_wildcards
from bertjax.parallel.distributed import (
    decide_on_primary,
    fetch_to_primary_host,
    has_separate_workdirs,
    is_primary,
    primary_first,
    raise_together,
)


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run stands: `step` batches seen; in `phase` (from 0) the next example is number `next`."""

    step: int = 0
    phase: int = 0
    next: int = 0


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """What `latest` found: the position and the resolved config at the time, before the arrays are read."""

    position: Position
    config: dict[str, Any]


class Checkpoints:
    """The folder `checkpoints/`: a sub-folder for each step with the items state, position and config, and checksums.

    Where each process has a folder of its own the first alone saves, all of the state, and the others read what was
    handed over to them.

    Saving is asynchronous: the arrays are copied to the host, then a thread writes them, reads back their structure,
    puts all on disk with its checksums, and removes what is no longer kept (all but the newest `keep` and the one with
    the lowest cost). A save that failed raises at the next `save`, at `wait` or at `close`. Of several processes all
    have to call the first two, and all raise where one has failed.

    Args:
      directory: the folder, made when absent.
      keep: how many of the newest steps.
      log: takes a line about each checkpoint that is removed or set aside.
      reading: nothing is made, moved or removed: for verbs that take a run as it is.

    Raises:
      UserError: `keep` below 1, or a folder that cannot be written to.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        keep: int,
        log: Callable[[str], None] = print,
        reading: bool = False,
    ):
        if keep < 1:
            raise UserError('config.checkpoint_keep', str(keep), 'a number of at least 1', 'set it to 1 or more')
        self.directory = pathlib.Path(directory).resolve()
        self._keep = keep
        self._log = log
        self._reading = reading
        self._steps = Steps(self.directory, log, reading=reading, moved=lambda: self._manager.reload())
        self._finisher: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._failed = False
        self._processes = _one_alone() if has_separate_workdirs() else ocp.options.MultiprocessingOptions()
        self._stack = contextlib.ExitStack()
        if not reading and is_primary():
            self._prepare()
        elif not reading and has_separate_workdirs():
            make_directory(self.directory)

    def _prepare(self) -> None:
        try:
            make_directory(self.directory)
        except (FileExistsError, NotADirectoryError):
            fix = 'move that file, or choose another --workdir'
            raise UserError(str(self.directory), 'a file', 'a folder that can be written to', fix) from None
        unfinished.remove_unfinished(self.directory, self._log)
        for path in unfinished.unknown(self.directory):
            self._log(f'{path} is not a finished checkpoint of this run: it is left alone')

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        # Orbax looks for what it has written by a pattern that begins with the path.
        directory = self._stack.enter_context(without_wildcards(self.directory))
        manager = ocp.CheckpointManager(
            directory,
            item_names=('state', 'position', 'config'),
            options=ocp.CheckpointManagerOptions(
                enable_async_checkpointing=True,
                create=not self._reading and not has_separate_workdirs(),  # which Orbax does for all processes only
                read_only=self._reading,
                multiprocessing_options=self._processes,
            ),
        )
        self._stack.callback(manager.close)
        return manager

    def steps(self) -> list[int]:
        """Finished steps, ascending."""
        return self._steps.finished()

    def latest(self) -> SavedCheckpoint | None:
        """The newest whole checkpoint, None when there is none at all.

        A damaged one is reported and moved to `checkpoints/damaged/`, and the one before it is tried.

        Raises:
          UserError: there are checkpoints, or what may be some, and none of them is whole.
        """
        step = decide_on_primary(self._steps.newest)
        self._check_own(step)
        return self._saved(step) if step >= 0 else None

    def _saved(self, step: int) -> SavedCheckpoint:
        args = ocp.args.Composite(position=ocp.args.JsonRestore(), config=ocp.args.JsonRestore())
        items = self._manager.restore(step, args=args)
        return SavedCheckpoint(Position(**items['position']), items['config'])

    def chosen(self, step: int, *, best: bool = False) -> SavedCheckpoint | None:
        """The checkpoint of `step`; with 0 the best (see `best`) if that is asked for and known, else the newest.

        None when there is none at all.

        Raises:
          UserError: no whole checkpoint of that step; or see `latest`.
        """
        if not step:
            latest = self.latest()
            lowest = self.best() if best and latest is not None else None
            return latest if lowest is None else self._saved(lowest)
        if step not in self.steps() or not self._steps.is_whole(step):
            there = ', '.join(map(str, self.steps())) or 'none'
            fix = 'choose one of them, or 0 for the newest' if self.steps() else 'train first'
            raise UserError('config.step', f'{step}, which {self.directory} does not have', f'one of {there}', fix)
        return self._saved(step)

    def restore(self, step: int, template: Any) -> Any:
        """The arrays of the state of a finished step, on the devices and in the shapes of `template` (abstract).

        A few of them at a time: where devices have their memory in common with the host, all of what is on its way to
        them would be there twice.
        """
        handler = ocp.StandardCheckpointHandler(
            restore_concurrent_gb=_at_a_time(template), multiprocessing_options=self._processes
        )
        return self._read(step, handler, ocp.args.StandardRestore(template))

    def restore_params(self, step: int, template: Any) -> Any:
        """The parameters alone of the state of a finished step: those of the abstract `template`, whatever others and
        whatever optimiser the state has."""
        state = {'params': template}
        reading = ocp.checkpoint_utils.construct_restore_args(state)
        handler = ocp.PyTreeCheckpointHandler(
            restore_concurrent_gb=_at_a_time(template), multiprocessing_options=self._processes
        )
        args = ocp.args.PyTreeRestore(state, restore_args=reading, partial_restore=True)
        return self._read(step, handler, args)['params']

    def _read(self, step: int, handler: ocp.CheckpointHandler, args: ocp.args.CheckpointArgs) -> Any:
        with ocp.Checkpointer(handler, multiprocessing_options=self._processes) as checkpointer:
            return checkpointer.restore(pathlib.Path(self._manager.directory, str(step), 'state'), args=args)

    def save(self, state: Any, position: Position, config: dict[str, Any], cost: float | None) -> None:
        """Starts to save; returns when the arrays may be overwritten. A step that is there already is left alone.

        `cost` is what `best` goes by; None where it was not measured.
        """
        self.wait()
        step = position.step
        if decide_on_primary(lambda: self._is_there(step)):
            return
        items = {'position': dataclasses.asdict(position), 'config': config}
        if has_separate_workdirs():
            state = fetch_to_primary_host(state)
            decide_on_primary(lambda: self._begin(step, state, items, cost) or 0)
        else:
            self._begin(step, jax.tree.map(_kept, state), items, cost)

    def _begin(self, step: int, state: Any, items: dict[str, Any], cost: float | None) -> None:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            **{name: ocp.args.JsonSave(item) for name, item in items.items()},
        )
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        with writing(self.directory, size):
            # Orbax alone skips what is not above every folder with a number, one without a seal among them.
            self._manager.save(step, args=args, force=True)
        finish = (step, cost, size, structure(state), items)
        self._finisher = threading.Thread(target=self._finish, args=finish, name='checkpoint')
        self._finisher.start()

    def _is_there(self, step: int) -> bool:
        """Whether a step is finished; one that is not is marked so, and what is there of it is set aside."""
        if step in self.steps():
            return True
        if (self.directory / str(step)).exists():
            self._log(f'checkpoint {step} of another time was never finished: it is set aside in {DAMAGED}/')
            self._steps.set_aside(step)
        with writing(self.directory, 0):
            unfinished.mark(self.directory, step)
        return False

    def _finish(self, step: int, cost: float | None, size: int, written: Structure, items: dict[str, Any]) -> None:
        try:
            with writing(self.directory, size):
                self._manager.wait_until_finished()
            if is_primary():
                check_readable(pathlib.Path(self._manager.directory, str(step)), written, items)
                with writing(self.directory, size):
                    checksums.write_checksums(self.directory / str(step), cost)
                unfinished.unmark(self.directory, step)
                for old in self._steps.superseded(self._keep):
                    unfinished.mark(self.directory, old)
                    # Orbax's own way to delete asks all processes, which are training.
                    shutil.rmtree(self.directory / str(old))
                    unfinished.unmark(self.directory, old)
        except BaseException as error:  # raised by wait(), in the training loop's thread
            self._failure = error

    def best(self) -> int | None:
        """The whole step with the lowest cost, the later of two equal ones; None where no cost was measured."""
        with primary_first():  # who find what it has saved
            pass
        step = decide_on_primary(self._steps.best)
        self._check_own(step)
        return step if step >= 0 else None

    def _check_own(self, step: int) -> None:
        """Raises UserError where the first has looked at another copy of a step than this process is to read."""
        if step < 0 or is_primary() or not has_separate_workdirs():
            return
        if wrong := checksums.damage(self.directory / str(step)):
            fix = f'remove {self.directory.parent}: the same command fetches it again'
            raise UserError(str(self.directory / str(step)), wrong, 'the checkpoint that the first process has', fix)

    @property
    def writing(self) -> bool:
        """Whether a save is under way."""
        return self._finisher is not None and self._finisher.is_alive()

    def wait(self) -> None:
        """Returns when the save under way is finished, in all processes; raises what went wrong with it.

        Raises:
          OtherStoppedError: it went wrong in another process.
        """
        if self._finisher is not None or has_separate_workdirs():  # then the first alone is at it, and all wait
            raise_together(self._outcome())

    def _outcome(self) -> BaseException | None:
        """Of the save under way, when it is finished: what went wrong with it."""
        if self._finisher is not None:
            self._finisher.join()
            self._finisher = None
        failure, self._failure = self._failure, None
        self._failed |= failure is not None
        return failure

    def close(self) -> None:
        """Waits for this process's part of the save under way, then closes Orbax.

        It asks no other process: they may have failed before they came here, or this one has.
        """
        try:
            if (failure := self._outcome()) is not None:
                raise failure
        finally:
            # What failed has been raised; Orbax would say it again in its own words.
            with contextlib.suppress(Exception) if self._failed else contextlib.nullcontext():
                self._stack.close()


def _one_alone() -> ocp.options.MultiprocessingOptions:
    """This process has its folder to itself: Orbax waits for no other."""
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f'process{own}'
    )


def _kept(x: Any) -> Any:
    """An array that stays as it is while it is written. On a CPU Orbax would write the one in the state itself, and the
    next step, to which that is given, would wait until it has."""
    if not isinstance(x, jax.Array) or jax.default_backend() != 'cpu':
        return x
    own = [shard.data for shard in x.addressable_shards]
    copies = jax.device_put(own, [part.sharding for part in own], may_alias=False)
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, copies)


def _at_a_time(template: Any) -> float:
    """Gigabytes of arrays that are read at once: as much as the largest has, for Orbax reads none for which there is
    too little room."""
    return (1.01 * max(x.size * max(x.dtype.itemsize, 4) for x in jax.tree.leaves(template)) + 2**20) / 1e9
