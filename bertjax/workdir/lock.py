"""A workdir: one process at a time in it; whether it holds a run, or a sweep and its trials."""

import contextlib
import pathlib
from collections.abc import Iterator

from bertjax.checkpoint.unfinished import any_checkpoint
from bertjax.errors import UserError
from bertjax.files.atomic import exclusive
from bertjax.parallel.distributed import check_shared_folder

TRIALS = 'cells'  # the folder of a sweep's trials; named so in workdirs since the first version
EXPORTED = 'export/cell.txt'  # of a sweep: the trial whose model is in export/


@contextlib.contextmanager
def lock_workdir(*workdirs: pathlib.Path, results_only: bool = False) -> Iterator[None]:
    """Makes the workdirs and locks them while something is computed there: what writes, and what reads what is written.

    Args:
      workdirs: each once or several times.
      results_only: they need hold no run: one that a mistake leaves new and empty is removed again.

    Raises:
      UserError: another process is at work in one of them; the processes of a run do not see the same one.
    """
    new = [workdir for workdir in workdirs if results_only and not workdir.exists()]
    with contextlib.ExitStack() as held:
        for workdir in dict.fromkeys(workdirs):
            workdir.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(workdir, 'works in this workdir'))
            check_shared_folder(workdir)
        try:
            yield
        except UserError:
            for workdir in new:
                with contextlib.suppress(OSError):  # it is not empty
                    workdir.rmdir()
            raise


def has_run(workdir: pathlib.Path) -> bool:
    """Whether there is a run or a sweep in this workdir, whose tokenizer must not be replaced."""
    return has_checkpoints(workdir) or (workdir / TRIALS).exists()


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Whether there is a run in this workdir, whose tokenizer and store must not be replaced.

    What a kill left of a first checkpoint is none: such a run begins anew.
    """
    return any_checkpoint(workdir / 'checkpoints')


def exported_trial(workdir: pathlib.Path) -> str | None:
    """The trial of a sweep whose model is in export/; None in a workdir without a sweep, or before the first export."""
    path = workdir / EXPORTED
    return path.read_text(encoding='utf-8', errors='replace').strip() if path.exists() else None
