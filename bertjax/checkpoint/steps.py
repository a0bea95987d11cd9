"""The folders in `checkpoints/`: finished steps, steps marked as unfinished, damaged steps and unknown folders.

Before this program writes or removes step 100, it creates the mark: a file `100.unfinished` beside the folder `100`.
Only marked folders and Orbax's temporary folders are ever removed.
"""

import itertools
import pathlib
import re
import shutil
from collections.abc import Callable

from bertjax.checkpoint import checksums
from bertjax.errors import UserError
from bertjax.files.atomic import sync_directory
from bertjax.files.disk import annotate_write_errors

DAMAGED = 'damaged'

_STEP = re.compile(r'0|[1-9][0-9]*')
_MARK = re.compile(rf'({_STEP.pattern})\.unfinished')
_TEMPORARY = re.compile(rf'({_STEP.pattern})\.orbax-checkpoint-tmp.*')


def step_of(path: pathlib.Path) -> int | None:
    """Returns the step of a folder by its name, or None for other names such as `100.bak`, `0100` or `100 (copy)`."""
    return int(path.name) if _STEP.fullmatch(path.name) else None


def finished_steps(directory: pathlib.Path) -> list[int]:
    """Returns the steps that were written completely, ascending, or [] if the folder does not exist."""
    steps = (step_of(path) for path in directory.glob('*') if checksums.is_finished(path))
    return sorted(step for step in steps if step is not None)


def any_checkpoint(directory: pathlib.Path) -> bool:
    """Returns whether a folder has, or may have had, a checkpoint.

    A checkpoint counts even if it is damaged, renamed or without a `seal.json`. Unfinished checkpoints of a killed
    process do not count.
    """
    if not directory.is_dir():
        return False
    may_have_lost = any((directory / DAMAGED).glob('*')) or any(map(may_be_checkpoint, unknown_folders(directory)))
    return may_have_lost or bool(finished_steps(directory))


def unknown_folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns all folders, sorted, except finished steps, `damaged/` and the folders that this program may remove."""
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir()
        and path.name != DAMAGED
        and not _TEMPORARY.fullmatch(path.name)
        and not (directory / f'{path.name}.unfinished').exists()
        and (step_of(path) is None or not checksums.is_finished(path))
    )


def may_be_checkpoint(path: pathlib.Path) -> bool:
    """Returns whether an unknown folder may be a checkpoint, because it has the name or the `seal.json` of a step."""
    return step_of(path) is not None or checksums.is_finished(path)


class Steps:
    """The steps in a folder. A damaged step is logged and, unless `read_only`, moved to `damaged/`.

    Args:
      directory: The folder, with a sub-folder per step.
      log: A function that logs a line about each unfinished, damaged or unknown folder.
      read_only: Whether to skip damaged steps instead of moving them.
    """

    def __init__(self, directory: pathlib.Path, log: Callable[[str], None], *, read_only: bool):
        self._directory, self._log, self._read_only = directory, log, read_only
        self._damaged: set[int] = set()  # the damaged steps that are skipped if `read_only`

    def clean_up(self) -> None:
        """Removes the folders that a killed process has only partly written or removed. Logs the unknown folders."""
        for path in sorted(self._directory.iterdir()):
            mark, temporary = _MARK.fullmatch(path.name), _TEMPORARY.fullmatch(path.name)
            if temporary and path.is_dir():
                self._log(f'checkpoint {temporary[1]} is incomplete: it is removed')
                self._remove_if_possible(path)
            elif mark and path.is_file():
                step = self._directory / mark[1]
                # An undamaged step is kept: the process died after it wrote `seal.json`, or before it removed a file.
                if step.is_dir() and checksums.find_damage(step) is not None:
                    self._log(f'checkpoint {step.name} is incomplete: it is removed')
                    if not self._remove_if_possible(step):
                        continue
                path.unlink()
        for path in unknown_folders(self._directory):
            self._log(f'{path} is not a finished checkpoint of this run: it is ignored')

    def begin(self, step: int) -> bool:
        """Marks a step that is about to be written, and sets aside an old folder. Returns False for a finished step."""
        if step in self.finished():
            return False
        if (self._directory / str(step)).exists():
            self._log(f'an earlier checkpoint {step} was never finished: it is set aside in {DAMAGED}/')
            self._set_aside(step)
        with annotate_write_errors(self._directory, 0):
            self._mark(step)
        return True

    def complete(self, step: int, keep: int) -> None:
        """Removes the mark of a step that was written. Then removes all steps except the newest `keep` and the best."""
        self._mark_path(step).unlink()
        best = self._lowest_cost()
        for old in self.finished()[:-keep]:
            if old != best:
                self._mark(old)
                # Orbax deletes a step only if all processes take part, but the other processes are training.
                if self._remove_if_possible(self._directory / str(old)):
                    self._mark_path(old).unlink()

    def _mark_path(self, step: int) -> pathlib.Path:
        return self._directory / f'{step}.unfinished'

    def _mark(self, step: int) -> None:
        self._mark_path(step).touch()
        sync_directory(self._directory)

    def _remove_if_possible(self, path: pathlib.Path) -> bool:
        """Removes a folder. Returns False if this fails, for example because a program reads its files over NFS."""
        try:
            shutil.rmtree(path)
        except OSError as error:
            self._log(f'{path} cannot be removed now ({error.strerror}): a later start of the run removes it')
            return False
        return True

    def finished(self) -> list[int]:
        """Returns the finished steps, ascending, without the damaged steps that `is_undamaged` has skipped."""
        return [step for step in finished_steps(self._directory) if step not in self._damaged]

    def newest(self) -> int:
        """Returns the newest undamaged step, or -1 if there are no checkpoints.

        Raises a UserError if all checkpoints are damaged or renamed.
        """
        for step in reversed(self.finished()):
            if self.is_undamaged(step):
                return step
        if self._directory.is_dir():
            self._check_for_lost_checkpoints()
        return -1

    def _check_for_lost_checkpoints(self) -> None:
        """Raises UserError if all checkpoints were lost, so that the run does not silently start from scratch."""
        where, file = str(self._directory), checksums.FILE
        damaged = len(list((self._directory / DAMAGED).glob('*'))) + len(self._damaged)
        if damaged:
            found = f'{damaged} checkpoint(s), all damaged'
            fix = f'start again in another --workdir; checkpoints set aside are in {self._directory / DAMAGED}'
            raise UserError(where, found, 'at least one undamaged checkpoint', fix)
        names = [path.name for path in unknown_folders(self._directory) if may_be_checkpoint(path)]
        if names:
            found = f'{len(names)} folder(s) that may be checkpoints ({", ".join(names[:3])}), all damaged or renamed'
            fix = f'restore the {file} or the original name, or move the folder(s) away to start from scratch'
            raise UserError(where, found, f'at least one step with its {file}', fix)

    def is_undamaged(self, step: int) -> bool:
        """Returns whether a finished step is undamaged. A damaged step is moved to `damaged/`, unless `read_only`."""
        damage = checksums.find_damage(self._directory / str(step))
        if damage is None:
            return True
        action = 'it is skipped' if self._read_only else 'it is set aside'
        self._log(f'checkpoint {step} is damaged ({damage}): {action}')
        if self._read_only:
            self._damaged.add(step)
        else:
            self._set_aside(step)
        return False

    def _set_aside(self, step: int) -> None:
        """Moves the folder of a step to `damaged/`, under an unused name."""
        names = itertools.chain([str(step)], (f'{step}-{number}' for number in itertools.count(2)))
        target = next(path for name in names if not (path := self._directory / DAMAGED / name).exists())
        target.parent.mkdir(exist_ok=True)
        (self._directory / str(step)).rename(target)

    def best(self) -> int:
        """Returns the undamaged step with the lowest cost, or -1 if there is no such step. The first wins a tie."""
        step = self._lowest_cost()
        while step is not None and not self.is_undamaged(step):
            step = self._lowest_cost()
        return -1 if step is None else step

    def _lowest_cost(self) -> int | None:
        costs = {step: checksums.read_cost(self._directory / str(step)) for step in self.finished()}
        measured = [step for step in costs if costs[step] is not None]
        return min(measured, key=costs.get, default=None)
