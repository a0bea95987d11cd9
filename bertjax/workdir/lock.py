"""The lock of a workdir, and the checks whether it holds a run or a sweep."""

import contextlib
import pathlib
from collections.abc import Iterator

from bertjax.checkpoint.unfinished import any_checkpoint
from bertjax.errors import UserError
from bertjax.files.atomic import lock_directory
from bertjax.parallel.distributed import check_shared_folder

TRIALS = 'cells'  # the folder in the workdir of a sweep with the trials
EXPORTED = 'export/cell.txt'  # the file in the workdir of a sweep that names the exported trial


@contextlib.contextmanager
def lock_workdir(*workdirs: pathlib.Path, results_only: bool = False) -> Iterator[None]:
    """Creates and locks the workdirs while a verb reads or writes them.

    Args:
      workdirs: The workdirs; one may occur several times.
      results_only: Whether the verb only adds results. A new workdir that stays empty after an error is then removed.

    Raises:
      UserError: Another process works in a workdir, or the processes of a run see different folders.
    """
    new = [workdir for workdir in workdirs if results_only and not workdir.exists()]
    with contextlib.ExitStack() as locks:
        for workdir in dict.fromkeys(workdirs):
            workdir.mkdir(parents=True, exist_ok=True)
            locks.enter_context(lock_directory(workdir, 'works in this workdir'))
            check_shared_folder(workdir)
        try:
            yield
        except UserError:
            for workdir in new:
                with contextlib.suppress(OSError):  # The folder is not empty.
                    workdir.rmdir()
            raise


def has_run(workdir: pathlib.Path) -> bool:
    """Whether the workdir has a run or a sweep, so that its tokenizer must not be replaced."""
    return has_checkpoints(workdir) or (workdir / TRIALS).exists()


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Whether the workdir has a run, so that its tokenizer and store must not be replaced.

    An unfinished first checkpoint, left by a kill, does not count: such a run begins anew.
    """
    return any_checkpoint(workdir / 'checkpoints')


def exported_trial(workdir: pathlib.Path) -> str | None:
    """Returns the trial of a sweep whose model is in export/; None without a sweep or before the first export."""
    path = workdir / EXPORTED
    return path.read_text(encoding='utf-8', errors='replace').strip() if path.exists() else None
