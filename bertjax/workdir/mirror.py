"""A workdir in a bucket: the program works in a local folder, its mirror.

Before a verb starts, the mirror is made equal to the bucket; while the verb runs and at its end, changes are published.
Each process of a run has its own mirror: the primary process publishes, and the others fetch.
"""

import _thread
import contextlib
import hashlib
import pathlib
import secrets
import tempfile
import threading
from collections.abc import Iterator

import jax
from absl import logging

from bertjax.checkpoint import checksums
from bertjax.convert import orbax, stablehlo
from bertjax.convert.google import read as google
from bertjax.convert.huggingface import read as huggingface
from bertjax.errors import NonFiniteError, PreemptedError, StoppedError, UserError
from bertjax.files.atomic import lock_directory, make_directory, write_atomic
from bertjax.files.paths import register_address
from bertjax.parallel.distributed import is_primary, primary_first, separate_workdirs
from bertjax.remote.cache import cache_folder
from bertjax.remote.lease import Lease
from bertjax.remote.mirror import Mirror, MirrorRules
from bertjax.remote.object_store import RemoteFolder

PUBLISH_EVERY = 20.0  # seconds
_IN_ALL_PROCESSES = (PreemptedError, NonFiniteError)  # All processes of a run raise these at the same step.

_MARKERS = {
    r'(?:.*/)?checkpoints/\d+/': checksums.FILE,
    r'\.unfinished/[^/]+/\d+/': checksums.FILE,  # checkpoints of the trials of a sweep
    r'(?:.*/)?(?:store/(?:\d+/)?|heldout/[^/]+/)(?!plans/|\d+/)': 'manifest.json',
    r'(?:.*/)?export/hf/': huggingface.CONFIG,
    r'(?:.*/)?export/orbax/': orbax.MODEL,
    r'(?:.*/)?export/google/': google.CONFIG,
    r'(?:.*/)?export/stablehlo/': stablehlo.FUNCTIONS,
}
# Unfinished builds and saves, and pairing plans, which are quick to rebuild.
_IGNORED = r'(^|/)(partial|plans)/|\.unfinished$|\.orbax-checkpoint-tmp'
_RULES = MirrorRules(_MARKERS, _IGNORED)
_DOCTOR_RULES = MirrorRules(_MARKERS, rf'{_IGNORED}|(^|/)(export/|\.unfinished/|checkpoints/\d+/(?!{checksums.FILE}$))')
_READ_ONLY_RULES = MirrorRules(_MARKERS, rf'{_IGNORED}|(^|/)(checkpoints|\.unfinished|store|heldout|export)/')


class UnpublishedError(StoppedError):
    """Some results of the run are only in its local mirror, not in the bucket."""


@contextlib.contextmanager
def mirrored_workdir(url: str, use: str) -> Iterator[str]:
    """Yields the local folder in which a verb works on the workdir `url`; for `use`, see `Verb.bucket`.

    Raises:
      UserError: Before the body: the bucket is missing, denied or unreachable, or another run works in the workdir.
      OtherStoppedError: Another process of this run raised an error.
      UnpublishedError, LostLeaseError: After the body: not all results are in the bucket.
    """
    remote = RemoteFolder(url, '--workdir')
    name = remote.url.rpartition('/')[2]
    if use != 'write':
        with _read_only_mirror(remote, name, inspect=use == 'inspect') as folder:
            yield str(folder)
        return
    home = cache_folder() / 'workdirs' / hashlib.sha256(remote.url.encode()).hexdigest()[:16]
    folder = (home if is_primary() else home / f'process{jax.process_index()}') / name
    make_directory(folder)
    with _publish_mirror(folder, remote, home) if is_primary() else _fetch_mirror(Mirror(folder, remote, _RULES)):
        register_address(folder, remote.url)
        yield str(folder)


@contextlib.contextmanager
def _read_only_mirror(remote: RemoteFolder, name: str, *, inspect: bool) -> Iterator[pathlib.Path]:
    """Yields a temporary mirror. With `inspect` it has more files, and errors of the bucket are ignored."""
    with tempfile.TemporaryDirectory(prefix='bertjax-') as top:
        mirror = Mirror(pathlib.Path(top, name), remote, _DOCTOR_RULES if inspect else _READ_ONLY_RULES)
        make_directory(mirror.folder)
        with contextlib.suppress(UserError) if inspect else contextlib.nullcontext():
            mirror.pull()
        register_address(mirror.folder, remote.url)
        yield mirror.folder
        if not inspect:
            mirror.publish(everything=True)


@contextlib.contextmanager
def _publish_mirror(folder: pathlib.Path, remote: RemoteFolder, home: pathlib.Path) -> Iterator[None]:
    """Publishes the mirror during the body and at its end, even after an error; only in the primary process.

    The process holds the lease of the workdir.
    """
    lease = Lease(remote, _mirror_id(home))
    publisher = Publisher(Mirror(folder, remote.with_check(lease.check), _RULES), lease)
    ended = None
    with contextlib.ExitStack() as stack:
        with separate_workdirs(publisher.hand_over):
            with primary_first():
                stack.enter_context(lock_directory(home, f'works in {remote}'))
                lease.take(print)
                stack.callback(lease.release)
                publisher.mirror.pull()
            print(f'{remote}, worked on in {folder}', flush=True)
            try:
                with publisher:
                    yield
            except BaseException as error:
                ended = error
        _finish(publisher, ended)


@contextlib.contextmanager
def _fetch_mirror(mirror: Mirror) -> Iterator[None]:
    """In the other processes: fetches what the primary process has published, each time it hands over."""

    @contextlib.contextmanager
    def fetch() -> Iterator[None]:
        mirror.pull()
        yield

    ended = None
    with separate_workdirs(fetch):
        with primary_first():
            pass
        try:
            yield
        except _IN_ALL_PROCESSES as error:
            ended = error
    with primary_first():  # Raises if the primary process could not publish everything.
        pass
    if ended is not None:
        raise ended


def _mirror_id(home: pathlib.Path) -> str:
    """Returns a random identity of the mirror, because two machines may have the same name."""
    path = home / 'identity'
    if not path.exists():
        write_atomic(path, secrets.token_hex(8))
    return path.read_text(encoding='utf-8')


def _finish(publisher: 'Publisher', ended: BaseException | None) -> None:
    """Publishes the rest and raises the error of the body; the other processes wait if their body ended, too."""
    try:
        all_ended = ended is None or isinstance(ended, _IN_ALL_PROCESSES)
        with primary_first() if all_ended else contextlib.nullcontext():
            count, size = publisher.finish()
    except StoppedError as failure:
        if ended is not None and not isinstance(ended, (KeyboardInterrupt, PreemptedError)):
            logging.warning('%s', failure)  # The error of the body came first, so it is raised.
            raise ended from None
        raise failure from ended
    if count:
        print(f'published to {publisher.mirror.remote}: {count:,} objects, {size / 1e6:,.1f} MB', flush=True)
    if ended is not None:
        raise ended


class Publisher:
    """A thread that publishes a mirror within its context, and stops the run if publishing fails.

    It makes one pass at a time over the newest files: a checkpoint that is superseded before it was sent is skipped,
    and the training never waits. It interrupts the run as Ctrl-C does if the time for retries is over, if writing
    is denied, or if another process has taken the workdir; `finish` then raises the reason.
    """

    def __init__(self, mirror: Mirror, lease: Lease):
        self.mirror, self._lease = mirror, lease
        self._ended, self._pass_lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._publish_often, name='publisher', daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> 'Publisher':
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _publish_often(self) -> None:
        while not self._ended.wait(PUBLISH_EVERY):
            try:
                with self._pass_lock:
                    self.mirror.publish()
            except (UserError, StoppedError, OSError) as error:
                self._failure = error
                if not self._ended.is_set():  # Otherwise `finish` is about to raise the error.
                    _thread.interrupt_main()
                return

    @contextlib.contextmanager
    def hand_over(self) -> Iterator[None]:
        """Publishes everything; the bucket does not change during the body. Raises the errors of `finish`."""
        with self._pass_lock:
            self.finish()
            yield

    def finish(self) -> tuple[int, int]:
        """Publishes all remaining files while the thread does not run; returns the numbers of objects and bytes.

        Raises:
          UnpublishedError: A file cannot be published; the mirror keeps it.
          LostLeaseError: Another process has taken the workdir.
        """
        try:
            if self._failure is not None:
                raise self._failure
            self._lease.check()  # Also checked if nothing is left to publish.
            return self.mirror.publish(everything=True)
        except (UserError, OSError) as error:
            raise UnpublishedError(
                f'stopped: not all of the run is in {self.mirror.remote} ({error}). All of it is in '
                f'{self.mirror.folder}: the same command on this machine publishes it, and continues'
            ) from None
