"""Several processes as one run: what the first does for all, what they agree on, and how they end.

Each process has its own devices and makes its own rows; the state lies on the devices of all. Only the first one writes
and prints. All read the workdir, which lies where every one of them sees it; or each has a folder of its own for it,
and what the first has written is handed over to the others.
"""

import contextlib
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

from bertjax.errors import LostError, StoppedError, UserError
from bertjax.files import disk
from bertjax.files.write_guard import disable_writes
from bertjax.parallel.devices import claim_devices, leave_out_absent_tpus
from bertjax.parallel.process_flags import ProcessFlags

HEARTBEAT = 30  # seconds without a sign of life after which a process counts as lost
_LEAVING = 60  # seconds that a process which has failed waits for the others to fail as well
_LONG = 7 * 24 * 3600  # seconds: the others wait while the first builds a corpus, or writes a model
_LOST = ('Gloo', 'coordination service', 'heartbeat', 'UNAVAILABLE', 'DEADLINE_EXCEEDED')  # in words of JAX


class OtherStoppedError(StoppedError):
    """Another process has stopped, the first one where none is named, and said why."""

    def __init__(self, exit_status: int, process: int = 0):
        name = f'process {process}' if process else 'the first process'
        super().__init__(f'stopped with {name}, which says why (status {exit_status})')
        self.exit_status = exit_status


def join(membership: ProcessFlags) -> None:
    """Meets the other processes; returns when all are there. Must come before JAX has computed anything.

    Where the command line says nothing JAX finds the others by itself: on TPU VMs and GKE, and under Slurm.
    """
    leave_out_absent_tpus()
    # JAX waits for the others in compiled code, where Python's handler would wait as well; and in a process that bash
    # has started in the background Ctrl-C is ignored until now.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    jax.distributed.initialize(
        membership.coordinator_address,
        membership.num_processes,
        membership.process_id,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=_LONG,
    )
    claim_devices()
    if not is_primary():
        disable_writes()
        sys.stdout = open(os.devnull, 'w', encoding='utf-8')  # noqa: SIM115


_alone = False  # within `primary_first`, where no process may wait for another


def is_multiprocess() -> bool:
    """Whether this process computes together with others."""
    return not _alone and jax.distributed.is_initialized() and jax.process_count() > 1


def is_primary() -> bool:
    """Whether this is the process that writes and prints; the only one always is."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def broadcast_from_primary(value: int) -> int:
    """The first process's value, in all of them."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if is_multiprocess() else value


# Where each process has a workdir of its own: entered in the first once what it has written is to be found by the
# others, and left when all have it; meanwhile in the others, to fetch it.
WorkdirSync = Callable[[], contextlib.AbstractContextManager[None]]
_hand_over: WorkdirSync | None = None


@contextlib.contextmanager
def separate_workdirs(hand_over: WorkdirSync) -> Iterator[None]:
    """Meanwhile each process has a workdir of its own."""
    global _hand_over
    _hand_over = hand_over
    try:
        yield
    finally:
        _hand_over = None


def has_separate_workdirs() -> bool:
    """Whether this is one of several processes, each of which has a workdir of its own."""
    return _hand_over is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def primary_first() -> contextlib.AbstractContextManager[None]:
    """The body runs in the first process, then in the others, which find what it has made.

    It computes nothing on the mesh, for which all are needed; what would ask the other processes asks none.

    Raises:
      OtherStoppedError: in the others, where the first one has raised; in all but one, where that one could not take
        what the first has made.
    """
    return _first_before_others(_hand_over)


@contextlib.contextmanager
def _first_before_others(hand_over: WorkdirSync | None) -> Iterator[None]:
    if not is_multiprocess():
        yield
        return
    with contextlib.ExitStack() as held:
        if is_primary():
            with _telling(_tell_first):
                with _as_if_alone():
                    yield
                if hand_over:
                    held.enter_context(hand_over())
            if hand_over:
                _tell_all(0)
            return
        _tell_first(0)
        if hand_over:
            with _telling(_tell_all), hand_over():
                pass
        with _as_if_alone():
            yield


@contextlib.contextmanager
def _telling(tell: Callable[[int], None]) -> Iterator[None]:
    """Tells how the body has ended, as an exit status."""
    status = 1
    try:
        yield
        status = 0
    except Exception as error:
        status = _status_of(error)
        raise
    finally:
        tell(status)


def _tell_first(status: int) -> None:
    """All learn the status of the first process; raises OtherStoppedError in the others where it is not 0."""
    wait_for_all(_LONG)
    told = broadcast_from_primary(status)
    if told and not is_primary():
        raise OtherStoppedError(told)


def _tell_all(status: int) -> None:
    """All learn the status of all; raises OtherStoppedError in those with 0 where another one is not."""
    wait_for_all(_LONG)
    told = multihost_utils.process_allgather(np.int32(status)).ravel()
    if not status and told.any():
        process = int(np.flatnonzero(told)[0])
        raise OtherStoppedError(int(told[process]), process)


@contextlib.contextmanager
def _as_if_alone() -> Iterator[None]:
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


def decide_on_primary(decide: Callable[[], int]) -> int:
    """What `decide` gives in the first process, in all of them; the others do not call it, and nothing is handed over.

    Raises:
      OtherStoppedError: in the others, where it has raised.
    """
    if not is_multiprocess():
        return decide()
    value = 0
    with _first_before_others(None):
        if is_primary():
            value = decide()
    return broadcast_from_primary(value)


def raise_together(failure: BaseException | None) -> None:
    """Called by all: raises `failure`, of this process, and returns only where none of them has one.

    Raises:
      OtherStoppedError: where this process has none, and another one has.
    """
    if is_multiprocess():
        _tell_all(0 if failure is None else _status_of(failure))
    if failure is not None:
        raise failure


def _status_of(error: BaseException) -> int:
    """With which `bertjax.main` ends a process that raises it."""
    if isinstance(error, (UserError, StoppedError)):
        return error.exit_status
    return UserError.exit_status if disk.refused(error, '.') else 1


_waits = 0


def wait_for_all(seconds: int) -> None:
    """Returns when all processes have come here. Without the devices, which do not like to wait for hours."""
    global _waits
    _waits += 1
    _meet(f'bertjax-{_waits}', seconds)


def _meet(key: str, seconds: int) -> None:
    # Orbax brings it; importing Orbax takes a second, and a single process needs none of it.
    from orbax.checkpoint import multihost

    multihost.get_barrier_sync_fn()(key=key, timeout_ms=seconds * 1000)


def remove_on_all(folder: pathlib.Path) -> None:
    """Removes a folder with which all have done when they have come here; where there is none, nothing."""
    if is_multiprocess():
        wait_for_all(_LONG)
    with primary_first():
        if is_primary() or has_separate_workdirs():
            shutil.rmtree(folder, ignore_errors=True)


def check_shared_folder(folder: pathlib.Path) -> None:
    """Raises UserError, in all processes, unless `folder` is one and the same for all of them, or they are apart."""
    if not is_multiprocess() or has_separate_workdirs():
        return
    mark = folder / f'.seen-{broadcast_from_primary(secrets.randbits(30))}'
    with primary_first():
        if is_primary():
            mark.touch()
    blind = np.flatnonzero(~multihost_utils.process_allgather(np.asarray(mark.exists())))
    if is_primary():
        mark.unlink()
    if len(blind):
        found = f'{folder}, which process {blind[0]} does not see as process 0 does'
        raise UserError('--workdir', found, 'one folder for all processes', 'give one on a file system that they share')


def fetch_to_all_hosts(tree: Any) -> Any:
    """The arrays of a tree on the host of every process, one at a time; as they are where there is one process."""
    return jax.tree.map(_whole, tree) if is_multiprocess() else tree


def fetch_to_primary_host(tree: Any) -> Any:
    """Copies of the arrays of a tree on the host of the first process, one at a time; None for each in the others."""

    def copied(x: jax.Array | np.ndarray) -> np.ndarray | None:
        whole = _whole(x)
        # On a CPU it is the memory of the array, which may be given to the next step.
        return np.array(whole) if is_primary() else None

    return jax.tree.map(copied, tree)


def _whole(x: jax.Array | np.ndarray) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x
    if x.is_fully_replicated or x.is_fully_addressable:  # the latter lies on devices of this process alone
        return np.asarray(x)
    return np.asarray(jax.device_put(x, NamedSharding(x.sharding.mesh, PartitionSpec())))


def is_lost(error: BaseException) -> bool:
    """Whether JAX has raised this because another process is gone."""
    # XLA's errors come as ValueError and as RuntimeError, of which JaxRuntimeError is one.
    of_jax = isinstance(error, (ValueError, RuntimeError))
    return is_multiprocess() and of_jax and any(word in str(error) for word in _LOST)


def leave(status: int) -> None:
    """Ends this process, which has failed, with `status`.

    Where all have failed, for one reason, they end together; where the others go on, they find this one lost. None of
    them can take it for one that has come to `wait_for_all`.
    """
    if is_multiprocess():
        try:
            if status == LostError.exit_status:
                os._exit(status)
            _meet('bertjax-leaving', _LEAVING)
        except Exception:  # of whatever kind: the others are not coming
            os._exit(status)
    sys.exit(status)
