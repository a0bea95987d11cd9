"""The checkpoints of a run, saved and restored by Orbax."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpoint import checksums
from bertjax.checkpoint.position import Position
from bertjax.checkpoint.steps import Steps
from bertjax.errors import UserError
from bertjax.files.atomic import make_directory
from bertjax.files.disk import annotate_write_errors
from bertjax.files.paths import without_wildcards
from bertjax.parallel.distributed import (
    decide_on_primary,
    fetch_to_primary_host,
    has_separate_workdirs,
    is_alone,
    is_primary,
    primary_first,
    raise_together,
)

Structure = dict[str, tuple[tuple[int, ...], str]]  # {path: (shape, dtype)} of arrays


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """The position and the resolved config in a checkpoint, without its arrays."""

    position: Position
    config: dict[str, Any]

    @property
    def eval_params(self) -> str:
        """The part of the state to evaluate and export: 'ema' if the run averages its weights, else 'params'."""
        return 'ema' if self.config.get('ema_decay') else 'params'


class Checkpoints:
    """The folder `checkpoints/`. A sub-folder per step has the state, the position, the config and the checksums.

    If processes have separate workdirs, only the primary process saves, and it saves the full state. The other
    processes receive and read copies.

    `save` copies the arrays to the host. A background thread writes them, reads their structure back, and syncs the
    files and their checksums to disk. It then removes old checkpoints, except the newest `keep` and the one with the
    lowest cost. If a save fails, the next `save`, `wait` or `close` raises its error. All processes must call `save`
    and `wait`, which raise in all processes if the save failed in one of them. The constructor raises a UserError if
    the directory or a parent of it is a file.

    Args:
      directory: The folder, which is created if needed.
      keep: The number of newest steps to keep, at least 1.
      log: A function that logs a line about each unfinished, damaged or unknown checkpoint.
      read_only: Whether to leave the folder unchanged, for commands that only read a run.
    """

    def __init__(
        self, directory: pathlib.Path, *, keep: int = 1, log: Callable[[str], None] = print, read_only: bool = False
    ):
        self.directory = directory.resolve()
        self._keep = keep
        self._steps = Steps(self.directory, log, read_only=read_only)
        self._saving: futures.Future | None = None
        waits_for_others = not (has_separate_workdirs() or is_alone())
        self._processes = ocp.options.MultiprocessingOptions() if waits_for_others else _single_process()
        self._stack = contextlib.ExitStack()
        # The path must not have wildcards, because Orbax finds its files by a glob pattern that begins with the path.
        self._orbax_directory = self._stack.enter_context(without_wildcards(self.directory))
        # At the end, the stack closes the thread before the path, so the path exists until the last save has finished.
        self._thread = self._stack.enter_context(futures.ThreadPoolExecutor(1, 'checkpoint'))
        if not read_only and is_primary():
            self._prepare()
        elif not read_only and has_separate_workdirs():
            make_directory(self.directory)

    def _prepare(self) -> None:
        try:
            make_directory(self.directory)
        except (FileExistsError, NotADirectoryError):
            where, fix = str(self.directory), 'move that file, or choose another --workdir'
            raise UserError(where, 'a file, or a path below a file', 'a folder that can be written to', fix) from None
        self._steps.clean_up()

    def steps(self) -> list[int]:
        """Returns the finished steps, ascending."""
        return self._steps.finished()

    def latest(self) -> SavedCheckpoint | None:
        """Returns the newest undamaged checkpoint, or None if there are no checkpoints.

        Newer checkpoints that are damaged are reported. Unless `read_only`, they are moved to `checkpoints/damaged/`.
        Raises a UserError if all checkpoints are damaged or renamed, or if this process has a damaged copy.
        """
        step = decide_on_primary(self._steps.newest)
        self._check_local_copy(step)
        return self._load_saved(step) if step >= 0 else None

    def _load_saved(self, step: int) -> SavedCheckpoint:
        handler, args = ocp.JsonCheckpointHandler(), ocp.args.JsonRestore()
        position, config = (self._read(step, item, handler, args) for item in ('position', 'config'))
        return SavedCheckpoint(Position(**position), config)

    def select(self, step: int, *, best: bool = False) -> SavedCheckpoint | None:
        """Returns the checkpoint of a step. Raises a UserError if there is no undamaged checkpoint of this step.

        Step 0 stands for the result of `latest` or, if `best` is True and a cost was measured, for the best checkpoint.
        """
        if not step:
            latest = self.latest()
            lowest = self.best() if best and latest is not None else None
            return latest if lowest is None else self._load_saved(lowest)
        if step not in self.steps() or not self._steps.is_undamaged(step):
            available = ', '.join(map(str, self.steps()))
            found = f'{step}, but {self.directory} has no undamaged checkpoint of this step'
            expected = f'one of the saved steps ({available or "none"})'
            fix = 'choose one of them, or 0 for the newest or best' if available else 'train first'
            raise UserError('config.step', found, expected, fix)
        return self._load_saved(step)

    def restore(self, step: int, template: Any, *, partial: bool = False) -> Any:
        """Restores the state of a finished step with the shapes and shardings of the abstract `template`.

        If `partial`, the saved state may have parts that the template lacks. Only a few arrays are read at a time. If
        devices share the host's memory, an array exists twice during its transfer.
        """
        largest = max(x.size * max(x.dtype.itemsize, 4) for x in jax.tree.leaves(template))
        handler = ocp.PyTreeCheckpointHandler(
            restore_concurrent_gb=(1.01 * largest + 2**20) / 1e9,  # the largest array must fit
            multiprocessing_options=self._processes,
        )
        restore_args = ocp.checkpoint_utils.construct_restore_args(template)
        args = ocp.args.PyTreeRestore(template, restore_args=restore_args, partial_restore=partial)
        return self._read(step, 'state', handler, args)

    def restore_params(self, saved: SavedCheckpoint, template: Any) -> Any:
        """Restores only the parameters in the abstract `template`, from the part `saved.eval_params` of the state."""
        part = saved.eval_params
        return self.restore(saved.position.step, {part: template}, partial=True)[part]

    def _read(self, step: int, item: str, handler: ocp.CheckpointHandler, args: ocp.args.CheckpointArgs) -> Any:
        with ocp.Checkpointer(handler, multiprocessing_options=self._processes) as checkpointer:
            return checkpointer.restore(self._orbax_directory / str(step) / item, args=args)

    def save(self, state: Any, position: Position, config: dict[str, Any], cost: float | None) -> None:
        """Starts to save a step, and returns when the arrays may be overwritten. A finished step is not saved again.

        `cost` is the value that `best` minimizes; None if it was not measured.
        """
        self.wait()
        step = position.step
        if not decide_on_primary(lambda: self._steps.begin(step)):
            return
        items = {'position': dataclasses.asdict(position), 'config': config}
        if has_separate_workdirs():
            state = fetch_to_primary_host(state)
            decide_on_primary(lambda: self._begin(step, state, items, cost) or 0)
        else:
            self._begin(step, jax.tree.map(_copy_on_cpu, state), items, cost)

    def _begin(self, step: int, state: Any, items: dict[str, Any], cost: float | None) -> None:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), **{name: ocp.args.JsonSave(item) for name, item in items.items()}
        )
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        options = ocp.CompositeOptions(multiprocessing_options=self._processes)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        saver = ocp.AsyncCheckpointer(handler, multiprocessing_options=self._processes)
        with annotate_write_errors(self.directory, size):
            saver.save(self._orbax_directory / str(step), args=args)
        written = _structure(state)

        def finish() -> None:
            with annotate_write_errors(self.directory, size):
                saver.close()  # waits until the files are written
            if not is_primary():
                return
            _check_readable(self._orbax_directory / str(step), written, items)
            with annotate_write_errors(self.directory, size):
                checksums.write_checksums(self.directory / str(step), cost)
            self._steps.complete(step, self._keep)

        self._saving = self._thread.submit(finish)

    def best(self) -> int | None:
        """Returns the undamaged step with the lowest cost, or None if there is no such step. The first wins a tie."""
        with primary_first():  # copies the saved files to separate workdirs
            pass
        step = decide_on_primary(self._steps.best)
        self._check_local_copy(step)
        return step if step >= 0 else None

    def _check_local_copy(self, step: int) -> None:
        """Raises UserError if this process has a damaged copy of a step that the primary process has chosen."""
        if step < 0 or is_primary() or not has_separate_workdirs():
            return
        if damage := checksums.find_damage(self.directory / str(step)):
            fix = f'remove {self.directory.parent} and start the same command again, which copies it again'
            raise UserError(str(self.directory / str(step)), damage, 'an undamaged copy of the checkpoint', fix)

    @property
    def writing(self) -> bool:
        """Whether a save is running."""
        return self._saving is not None and not self._saving.done()

    def wait(self) -> None:
        """Waits for the end of the running save in all processes. If the save failed, raises its error.

        If the save failed only in other processes, raises OtherStoppedError.
        """
        if self._saving is not None or has_separate_workdirs():  # with separate workdirs, only the primary saves
            raise_together(self._wait_for_save())

    def _wait_for_save(self) -> BaseException | None:
        """Waits for the running save, if any, and returns its error, or None without an error."""
        failure = None if self._saving is None else self._saving.exception()
        self._saving = None  # only now, because Ctrl-C may interrupt the wait
        return failure

    def close(self) -> None:
        """Waits for this process's part of the running save. If the save failed, raises its error.

        This method does not wait for other processes, because any process may have failed.
        """
        with self._stack:
            if (failure := self._wait_for_save()) is not None:
                raise failure


def _single_process() -> ocp.options.MultiprocessingOptions:
    """Returns options with which Orbax does not wait for other processes."""
    index = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix=f'process{index}'
    )


def _copy_on_cpu(x: Any) -> Any:
    """Returns a copy of a JAX array if JAX runs on CPU, else the argument itself.

    On CPU, Orbax writes from the arrays themselves. Without a copy, the next step, which overwrites these arrays, would
    wait for the write.
    """
    if not isinstance(x, jax.Array) or jax.default_backend() != 'cpu':
        return x
    shards = [shard.data for shard in x.addressable_shards]
    copies = jax.device_put(shards, [shard.sharding for shard in shards], may_alias=False)
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, copies)


def _structure(tree: Any) -> Structure:
    """Returns {path: (shape, dtype)} of the arrays, or abstract arrays, in a tree."""
    leaves = jax.tree.flatten_with_path(tree)[0]
    name = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
    return {name(path): (tuple(x.shape), str(x.dtype)) for path, x in leaves}


def _check_readable(step_dir: pathlib.Path, state: Structure, items: Mapping[str, Any]) -> None:
    """Raises a UserError if the structure of the state or a JSON item of a saved step differs when it is read back.

    The path `step_dir` has no wildcards, which Orbax would expand. `items` is {name: saved JSON value}.
    """
    try:
        restored = _structure(ocp.StandardCheckpointHandler().metadata(epath.Path(step_dir, 'state')).tree)
        differences = sorted(restored.items() ^ state.items())
        for name, saved in items.items():
            read = ocp.JsonCheckpointHandler().restore(epath.Path(step_dir, name))
            if json.dumps(read, sort_keys=True) != json.dumps(saved, sort_keys=True):
                differences.append((name, 'another value'))
    except Exception as error:  # Orbax and tensorstore raise many types
        differences = [(type(error).__name__, ' '.join(str(error).split())[:200])]
    if differences:
        name, reason = differences[0]
        found = f'a save that cannot be read back ({name}: {reason})'
        fix = 'check the disk, then start the same command again: earlier checkpoints are kept'
        raise UserError(f'checkpoint {step_dir.name}', found, 'the values that were saved', fix)
