"""Coordinates several processes: lets only the primary write, makes the processes agree, and ends them together.

Each process has its own devices and makes its own rows of a batch. Only the primary process, which is the first one,
writes and prints. Checkpoints in a shared workdir are an exception: each process writes its shards. If workdirs are
separate, the other processes copy the files of the primary process.
"""

import contextlib
import itertools
import os
import pathlib
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import memory
from bertjax.errors import LostError, StoppedError, UserError, process_status
from bertjax.files import disk
from bertjax.files.atomic import disable_writes
from bertjax.parallel.devices import claim_devices, leave_out_absent_tpus
from bertjax.parallel.process_flags import ProcessFlags

HEARTBEAT = 30  # seconds without a heartbeat after which a process counts as lost
_LEAVING = 60  # seconds that a failed process waits for the others to fail too
_LONG = 7 * 24 * 3600  # seconds that the other processes wait while the primary builds a corpus or writes a model
# Words in JAX's messages about a lost process. The last entry is NCCL's, for `ncclRemoteError`.
_LOST = ('Gloo', 'coordination service', 'heartbeat', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'remote process exited')


class OtherStoppedError(StoppedError):
    """Another process has stopped and printed the reason."""

    def __init__(self, exit_status: int, process: int = 0):
        name = f'process {process}' if process else 'the first process'
        super().__init__(f'stopped: see the message of {name} (status {exit_status})')
        self.exit_status = exit_status


def join(flags: ProcessFlags) -> None:
    """Connects to the other processes, and waits until all are connected. Call it before JAX computes anything.

    Without flags, JAX finds the other processes itself on TPU VMs, on GKE and under Slurm.
    """
    leave_out_absent_tpus()
    # JAX waits in compiled code, where no Python signal handler runs, so only the default handler ends the process on
    # Ctrl-C. Background processes of Bash also need this handler, because Bash makes them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # JAX's handler of SIGTERM would only record the signal, so a long preparation would not stop.
    jax.config.update('jax_enable_preemption_service', False)
    jax.distributed.initialize(
        flags.coordinator_address,
        flags.num_processes,
        flags.process_id,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=_LONG,
    )
    claim_devices()
    if not is_primary():
        disable_writes()
        sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115


_alone = False  # True within the body of `primary_first`, where processes must not wait for each other


def is_multiprocess() -> bool:
    """Returns whether this is one of several processes that compute together."""
    return not _alone and jax.distributed.is_initialized() and jax.process_count() > 1


def is_alone() -> bool:
    """Returns whether this process, one of several, is in the body of `primary_first`."""
    return _alone


def is_primary() -> bool:
    """Returns whether this is the process that writes and prints. This is always true for a single process."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def broadcast_from_primary(value: int) -> int:
    """Returns the value of the primary process in all processes."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if is_multiprocess() else value


# A function that returns a context that synchronizes separate workdirs. On entry, the primary process publishes its
# files and the other processes fetch them. The primary leaves the context after all others have fetched the files.
WorkdirSync = Callable[[], contextlib.AbstractContextManager[None]]
_workdir_sync: WorkdirSync | None = None


@contextlib.contextmanager
def separate_workdirs(workdir_sync: WorkdirSync) -> Iterator[None]:
    """A context in which each process has a separate workdir, synchronized by `workdir_sync`."""
    global _workdir_sync
    _workdir_sync = workdir_sync
    try:
        yield
    finally:
        _workdir_sync = None


def has_separate_workdirs() -> bool:
    """Returns whether this is one of several processes with separate workdirs."""
    return _workdir_sync is not None and jax.distributed.is_initialized() and jax.process_count() > 1


@contextlib.contextmanager
def primary_first(*, sync_workdirs: bool = True) -> Iterator[None]:
    """A context whose body runs first in the primary process, then in the others, which see the primary's files.

    The body must not compute on the mesh, which needs all processes, and must not call `wait_for_all` or
    `gather_texts`. Within the body, `is_multiprocess` returns False, so the other functions of this module do not wait
    for other processes. Without `sync_workdirs`, separate workdirs do not get the primary's files.

    Raises:
      OtherStoppedError: In the other processes if the primary raised an error. In all others if a process could not
        fetch the primary's files.
    """
    workdir_sync = _workdir_sync if sync_workdirs else None
    if not is_multiprocess():
        yield
        return
    with contextlib.ExitStack() as stack:
        if is_primary():
            with _share_outcome():
                with _as_if_alone():
                    yield
                if workdir_sync:
                    stack.enter_context(workdir_sync())
            if workdir_sync:
                _share_status(0)
            return
        _share_status(0)
        if workdir_sync:
            with _share_outcome(), workdir_sync():
                pass
        with _as_if_alone():
            yield


@contextlib.contextmanager
def _share_outcome() -> Iterator[None]:
    """A context that calls `_share_status` with the exit status of its body."""
    status = 1
    try:
        yield
        status = 0
    except Exception as error:
        status = _status_of(error)
        raise
    finally:
        _share_status(status)


def _share_status(status: int) -> None:
    """Exchanges the statuses of all processes. If any is not 0, processes with status 0 raise OtherStoppedError."""
    wait_for_all()
    statuses = multihost_utils.process_allgather(np.int32(status)).ravel()
    if not status and statuses.any():
        process = int(np.flatnonzero(statuses)[0])
        raise OtherStoppedError(int(statuses[process]), process)


@contextlib.contextmanager
def _as_if_alone() -> Iterator[None]:
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


def decide_on_primary(decide: Callable[[], int]) -> int:
    """Returns the result of `decide` in the primary process. If it raises, the others raise OtherStoppedError."""
    if not is_multiprocess():
        return decide()
    value = 0
    with primary_first(sync_workdirs=False):
        if is_primary():
            value = decide()
    return broadcast_from_primary(value)


def raise_together(failure: BaseException | None) -> None:
    """Raises `failure`, or OtherStoppedError if only other processes have a failure. All processes must call this."""
    if is_multiprocess():
        _share_status(0 if failure is None else _status_of(failure))
    if failure is not None:
        raise failure


def _status_of(error: BaseException) -> int:
    """Returns the exit status of `bertjax.main` for an error."""
    if isinstance(error, UserError | StoppedError):
        return error.exit_status
    return UserError.exit_status if disk.explain_os_error(error, '.') or memory.out_of_memory_error(error) else 1


_waits = itertools.count(1)


def wait_for_all() -> None:
    """Waits until all processes have called this. Collectives on the devices are not used: they would time out."""
    _barrier(f'bertjax-{next(_waits)}', _LONG)


def _barrier(key: str, seconds: int) -> None:
    # Importing Orbax takes a second, and a single process does not need it.
    from orbax.checkpoint import multihost

    multihost.get_barrier_sync_fn()(key=key, timeout_ms=seconds * 1000)


def remove_on_all(folder: pathlib.Path) -> None:
    """Removes a folder, if it exists, after all processes have called this."""
    if is_multiprocess():
        wait_for_all()
    with primary_first():
        if is_primary() or has_separate_workdirs():
            shutil.rmtree(folder, ignore_errors=True)


def check_shared_folder(folder: pathlib.Path) -> None:
    """Raises UserError in all processes unless they share `folder` or have separate workdirs."""
    if not is_multiprocess() or has_separate_workdirs():
        return
    mark = folder / f'.seen-{broadcast_from_primary(secrets.randbits(30))}'
    with primary_first():
        if is_primary():
            mark.touch()
    not_shared = np.flatnonzero(~multihost_utils.process_allgather(np.asarray(mark.exists())))
    if is_primary():
        mark.unlink()
    if len(not_shared):
        found = f'{folder}, in which process {not_shared[0]} does not see the files of process 0'
        raise UserError('--workdir', found, 'one folder for all processes', 'give a folder on a shared file system')


def gather_texts(text: str) -> list[str]:
    """Returns the texts of all processes, in the order of the processes. All processes must call this."""
    wait_for_all()
    array = np.frombuffer(text.encode(), np.uint8)
    size = multihost_utils.process_allgather(np.int32(array.size)).max()
    padded = multihost_utils.process_allgather(np.pad(array, (0, size - array.size)))
    return [row.tobytes().rstrip(b'\0').decode() for row in padded]


def fetch_to_all_hosts(tree: Any) -> Any:
    """Fetches the full arrays of a tree, one at a time, to all hosts. A single process returns the same tree."""
    return jax.tree.map(_fetch, tree) if is_multiprocess() else tree


def fetch_to_primary_host(tree: Any) -> Any:
    """Copies the full arrays of a tree to the primary host, one at a time. In other processes, the leaves are None."""

    def copy(x: jax.Array | np.ndarray) -> np.ndarray | None:
        full = _fetch(x)
        # On a CPU, `full` shares the memory of an array that the next step may overwrite.
        return np.array(full) if is_primary() else None

    return jax.tree.map(copy, tree)


def _fetch(x: jax.Array | np.ndarray) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x
    if not x.is_fully_replicated and not x.is_fully_addressable:  # some devices belong to other processes
        x = jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec()))
    return np.asarray(x)


def is_lost(error: BaseException) -> bool:
    """Returns whether JAX has raised this error because another process is lost."""
    # XLA raises ValueError and JaxRuntimeError, which is a RuntimeError.
    may_be_jax = isinstance(error, ValueError | RuntimeError)
    return is_multiprocess() and may_be_jax and any(word in str(error) for word in _LOST)


def leave(status: int) -> None:
    """Ends this failed process with `status`.

    If all processes fail within a minute, they exit together. Otherwise, and after a LostError, this process ends
    without JAX's shutdown, so that the others detect the loss of this process.
    """
    status = process_status(status)
    if is_multiprocess():
        sys.stdout.flush()  # os._exit does not
        try:
            if status == LostError.exit_status:
                os._exit(status)
            _barrier('bertjax-leaving', _LEAVING)
        except Exception:  # on any error, a joint exit is impossible
            os._exit(status)
    sys.exit(status)
