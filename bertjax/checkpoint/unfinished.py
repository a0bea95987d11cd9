"""The entries of `checkpoints/`: finished steps, unfinished steps of this program, and unknown folders.

Before step 100 is written or removed, it is marked by a file `100.unfinished` beside the folder `100`. Only marked
folders and Orbax's temporary folders are ever removed.
"""

import pathlib
import re
import shutil
from collections.abc import Callable

from bertjax.checkpoint import checksums
from bertjax.files.atomic import sync_directory

DAMAGED = 'damaged'

_STEP = re.compile(r'0|[1-9][0-9]*')
_MARK = re.compile(rf'({_STEP.pattern})\.unfinished')
_TEMPORARY = re.compile(rf'({_STEP.pattern})\.orbax-checkpoint-tmp.*')


def step_of(path: pathlib.Path) -> int | None:
    """Returns the step of a folder by its name, or None for other names such as `100.bak`, `0100` or `100 (copy)`."""
    return int(path.name) if _STEP.fullmatch(path.name) else None


def finished_steps(directory: pathlib.Path) -> list[int]:
    """Returns the steps that were written completely, ascending; [] if the folder does not exist."""
    steps = (step_of(path) for path in directory.glob('*') if checksums.is_finished(path))
    return sorted(step for step in steps if step is not None)


def any_checkpoint(directory: pathlib.Path) -> bool:
    """Returns whether a folder has, or may have had, a checkpoint.

    Damaged, renamed and unsealed checkpoints count. Half-written folders of a killed process do not count.
    """
    if not directory.is_dir():
        return False
    may_have_lost = any((directory / DAMAGED).glob('*')) or any(map(may_be_checkpoint, unknown_folders(directory)))
    return may_have_lost or bool(finished_steps(directory))


def mark(directory: pathlib.Path, step: int) -> None:
    """Marks a step that is about to be written or removed."""
    (directory / f'{step}.unfinished').touch()
    sync_directory(directory)


def unmark(directory: pathlib.Path, step: int) -> None:
    """Removes the mark of a step."""
    (directory / f'{step}.unfinished').unlink()


def remove_unfinished(directory: pathlib.Path, log: Callable[[str], None]) -> None:
    """Removes the folders that a killed process has only partly written or removed."""
    for path in sorted(directory.iterdir()):
        mark_match, temporary_match = _MARK.fullmatch(path.name), _TEMPORARY.fullmatch(path.name)
        if temporary_match and path.is_dir():
            log(f'checkpoint {temporary_match[1]} was never finished: it is removed')
            shutil.rmtree(path)
        elif mark_match and path.is_file():
            step = directory / mark_match[1]
            # A sealed, undamaged step is kept: the kill came after the seal was written, or before files were removed.
            if step.is_dir() and not (checksums.is_finished(step) and checksums.find_damage(step) is None):
                log(f'checkpoint {step.name} was never finished: it is removed')
                shutil.rmtree(step)
            path.unlink()


def unknown_folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the sorted folders that are not finished steps, not `damaged/`, and not removable by this program."""
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
    """Returns whether an unknown folder may be a checkpoint, because it has the name or the seal of a step."""
    return step_of(path) is not None or checksums.is_finished(path)
