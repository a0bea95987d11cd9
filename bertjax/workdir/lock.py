"""The lock of a workdir, and checks for training runs in it."""

import contextlib
import pathlib
from collections.abc import Iterator

from bertjax.checkpoint.steps import any_checkpoint
from bertjax.errors import UserError
from bertjax.files.atomic import lock_directory
from bertjax.files.disk import check_writable
from bertjax.files.small_files import read_json_or_none
from bertjax.parallel.distributed import check_shared_folder, is_primary, primary_first

TRIALS = 'trials'  # the folder with the trials in the workdir of a sweep
SWEEP = 'sweep.json'  # the file in the workdir of a finished sweep with the summary of its trials
EXPORTED = 'export/trial.txt'  # the file in the workdir of a sweep that names the exported trial
REQUEST = 'benchmark.json'  # the file with the config of each task in the workdir of a benchmark


@contextlib.contextmanager
def lock_workdir(*workdirs: pathlib.Path, results_only: bool = False) -> Iterator[None]:
    """Creates the workdirs, and locks them within the context.

    Args:
      workdirs: The workdirs. Duplicates are allowed.
      results_only: Whether the command (config.run) only adds results. If so, existing workdirs may be read-only,
        because the results may go to standard output or to another workdir. New workdirs that are still empty after a
        UserError are then removed.

    Raises:
      UserError: Another process works in a workdir, a workdir cannot be written to (unless `results_only`), or the
        processes of a run do not share the folder.
    """
    new = [workdir for workdir in workdirs if results_only and not workdir.exists()]
    with contextlib.ExitStack() as locks:
        for workdir in dict.fromkeys(workdirs):
            workdir.mkdir(parents=True, exist_ok=True)
            with primary_first(sync_workdirs=False):
                locks.enter_context(lock_directory(workdir, 'works in this workdir'))
                if is_primary() and not results_only:
                    check_writable(workdir)
            check_shared_folder(workdir)
        try:
            yield
        except UserError:
            for workdir in new:
                with contextlib.suppress(OSError):  # the folder is not empty
                    workdir.rmdir()
            raise


def check_workdir_kind(workdir: pathlib.Path, kind: str) -> None:
    """Raises a UserError if the workdir has a run of another kind, because the two runs would write the same files.

    `kind` is 'a pre-training', 'a fine-tuning', 'a sweep' or 'a benchmark'. A pre-training run and a benchmark may
    share a workdir. Call the function before any computation.
    """
    existing = None
    if (workdir / TRIALS).exists():
        existing = 'a sweep'
    elif has_checkpoints(workdir):
        is_task = read_json_or_none(workdir / 'config.json', lambda config: 'task' in config)
        # Without a readable config, a single run may continue: the trainer compares its config with the checkpoint's.
        unknown = kind if kind in ('a pre-training', 'a fine-tuning') else 'a run'
        existing = {True: 'a fine-tuning', False: 'a pre-training'}.get(is_task, unknown)
    elif (workdir / REQUEST).exists():
        existing = 'a benchmark'
    if existing not in (None, kind) and {existing, kind} != {'a pre-training', 'a benchmark'}:
        expected, fix = f'another folder for {kind}', 'give a new folder, or move this one away'
        raise UserError('--workdir', f'{workdir}, which has {existing}', expected, fix)


def has_run(workdir: pathlib.Path) -> bool:
    """Returns whether the workdir has a run or a sweep. If so, its tokenizer must not be replaced."""
    return has_checkpoints(workdir) or (workdir / TRIALS).exists()


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Returns whether the workdir has checkpoints. If so, its tokenizer and token store must not be replaced.

    Unfinished checkpoints do not count, because a killed run without other checkpoints starts anew.
    """
    return any_checkpoint(workdir / 'checkpoints')


def exported_trial(workdir: pathlib.Path) -> str | None:
    """Returns the name of the trial whose model is in export/; None without a sweep or before the first export."""
    path = workdir / EXPORTED
    return path.read_text(encoding='utf-8', errors='replace').strip() if path.exists() else None


def trial_fields(folder: pathlib.Path) -> dict[str, str]:
    """Returns {'trial': NAME} for the folder of a trial of a sweep, else {}."""
    return {'trial': folder.name} if folder.parent.name == TRIALS else {}
