"""What in `checkpoints/` is whose: finished steps, what this program has begun, and what it does not know.

A step is marked before anything is written under its number, and before it is removed: `100.unfinished`, beside the
folder `100`. Only what is marked, and Orbax's temporary folders, is ever removed.
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
    """The step whose folder has this name; None for any other: `100.bak`, `0100` and `100 (copy)` are no steps."""
    return int(path.name) if _STEP.fullmatch(path.name) else None


def finished_steps(directory: pathlib.Path) -> list[int]:
    """The steps that were written to their end, ascending; of no folder none."""
    found = (step_of(path) for path in directory.glob('*') if checksums.is_finished(path))
    return sorted(step for step in found if step is not None)


def any_checkpoint(directory: pathlib.Path) -> bool:
    """Whether a run has a checkpoint here, or may have had one that is damaged or has lost its name or its seal.

    What a killed process left half written is none.
    """
    if not directory.is_dir():
        return False
    lost = any((directory / DAMAGED).glob('*')) or any(map(may_be_checkpoint, unknown(directory)))
    return lost or bool(finished_steps(directory))


def mark(directory: pathlib.Path, step: int) -> None:
    """Notes that a step is about to be written, or removed."""
    (directory / f'{step}.unfinished').touch()
    sync_directory(directory)


def unmark(directory: pathlib.Path, step: int) -> None:
    """Notes that it is done."""
    (directory / f'{step}.unfinished').unlink()


def remove_unfinished(directory: pathlib.Path, log: Callable[[str], None]) -> None:
    """Removes what a killed process left half written, or half removed."""
    for path in sorted(directory.iterdir()):
        marked, temporary = _MARK.fullmatch(path.name), _TEMPORARY.fullmatch(path.name)
        if temporary and path.is_dir():
            log(f'checkpoint {temporary[1]} was never finished: it is removed')
            shutil.rmtree(path)
        elif marked and path.is_file():
            step = directory / marked[1]
            # Sealed and whole: killed after the seal, or before its removal began.
            if step.is_dir() and not (checksums.is_finished(step) and checksums.damage(step) is None):
                log(f'checkpoint {step.name} was never finished: it is removed')
                shutil.rmtree(step)
            path.unlink()


def unknown(directory: pathlib.Path) -> list[pathlib.Path]:
    """The folders that are neither finished steps, nor set aside, nor this program's to remove; sorted."""
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
    """Whether an unknown folder may hold a state of this run: it is called as a step is, or sealed as one."""
    return step_of(path) is not None or checksums.is_finished(path)
