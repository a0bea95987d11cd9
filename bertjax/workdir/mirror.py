"""A workdir in a bucket: the program works in a folder of this machine, its mirror.

Before a verb the mirror is made equal to the bucket; meanwhile and at the end its changes are published. Each of
several processes has a mirror, on whatever machine: the first one publishes, the others fetch.
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
from bertjax.files.atomic import exclusive, make_directory, write_atomic
from bertjax.files.paths import name_as
from bertjax.parallel.distributed import is_primary, primary_first, separate_workdirs
from bertjax.remote.cache import cache_folder
from bertjax.remote.lease import Lease
from bertjax.remote.mirror import Mirror, MirrorRules
from bertjax.remote.object_store import RemoteFolder

PUBLISH_EVERY = 20.0  # seconds
_IN_ALL_PROCESSES = (PreemptedError, NonFiniteError)  # raised at the same step in all processes of a run

_MARKERS = {
    r'(?:.*/)?checkpoints/\d+/': checksums.FILE,
    r'\.unfinished/[^/]+/\d+/': checksums.FILE,  # of the trials of a sweep
    r'(?:.*/)?(?:store/(?:\d+/)?|heldout/[^/]+/)(?!plans/|\d+/)': 'manifest.json',
    r'(?:.*/)?export/hf/': huggingface.CONFIG,
    r'(?:.*/)?export/orbax/': orbax.MODEL,
    r'(?:.*/)?export/google/': google.CONFIG,
    r'(?:.*/)?export/stablehlo/': stablehlo.FUNCTIONS,
}
# Unfinished builds and saves, and pairing plans, which are made again in a moment.
_IGNORED = r'(^|/)(partial|plans)/|\.unfinished$|\.orbax-checkpoint-tmp'
_RULES = MirrorRules(_MARKERS, _IGNORED)
_DOCTOR_RULES = MirrorRules(_MARKERS, rf'{_IGNORED}|(^|/)(export/|\.unfinished/|checkpoints/\d+/(?!{checksums.FILE}$))')
_READ_ONLY_RULES = MirrorRules(_MARKERS, rf'{_IGNORED}|(^|/)(checkpoints|\.unfinished|store|heldout|export)/')


class UnpublishedError(StoppedError):
    """The results of the run are in its local mirror, and not all in the bucket."""


@contextlib.contextmanager
def mirrored_workdir(url: str, use: str) -> Iterator[str]:
    """The local folder in which a verb works on the workdir `url`; `use` is what it does to one, see `Verb.bucket`.

    Raises:
      UserError: a bucket that is missing, denied or out of reach, or a workdir that another run works in: before
        the body.
      OtherStoppedError: another process of this run has raised.
      UnpublishedError, LostLeaseError: after it, where its results are not all in the bucket.
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
        name_as(folder, remote.url)
        yield str(folder)


@contextlib.contextmanager
def _read_only_mirror(remote: RemoteFolder, name: str, *, inspect: bool) -> Iterator[pathlib.Path]:
    """A temporary mirror. The doctor's (`inspect`) has more files, and it reports itself what is denied."""
    with tempfile.TemporaryDirectory(prefix='bertjax-') as top:
        mirror = Mirror(pathlib.Path(top, name), remote, _DOCTOR_RULES if inspect else _READ_ONLY_RULES)
        make_directory(mirror.folder)
        with contextlib.suppress(UserError) if inspect else contextlib.nullcontext():
            mirror.pull()
        name_as(mirror.folder, remote.url)
        yield mirror.folder
        if not inspect:
            mirror.publish(everything=True)


@contextlib.contextmanager
def _publish_mirror(folder: pathlib.Path, remote: RemoteFolder, home: pathlib.Path) -> Iterator[None]:
    """In the first process, or the only one: it holds the lease, and alone publishes, meanwhile and, whatever became of
    the body, at the end."""
    lease = Lease(remote, _mirror_id(home))
    publisher = Publisher(Mirror(folder, remote.with_check(lease.check), _RULES), lease)
    ended = None
    with contextlib.ExitStack() as held:
        with separate_workdirs(publisher.hand_over):
            with primary_first():
                held.enter_context(exclusive(home, f'works in {remote}'))
                lease.take(print)
                held.callback(lease.release)
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
    """In another process: its mirror has what the first one has published, each time that it hands it over."""

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
    with primary_first():  # raises where the first one could not publish everything
        pass
    if ended is not None:
        raise ended


def _mirror_id(home: pathlib.Path) -> str:
    """Differs from that of every other machine, also of one with the same name."""
    path = home / 'identity'
    if not path.exists():
        write_atomic(path, secrets.token_hex(8))
    return path.read_text(encoding='utf-8')


def _finish(publisher: 'Publisher', ended: BaseException | None) -> None:
    """Publishes the rest, and raises what has ended the body; the other processes wait where that ended theirs."""
    try:
        together = ended is None or isinstance(ended, _IN_ALL_PROCESSES)
        with primary_first() if together else contextlib.nullcontext():
            count, size = publisher.finish()
    except StoppedError as failure:
        if ended is not None and not isinstance(ended, (KeyboardInterrupt, PreemptedError)):
            logging.warning('%s', failure)  # the other error came first
            raise ended from None
        raise failure from ended
    if count:
        print(f'published to {publisher.mirror.remote}: {count:,} objects, {size / 1e6:,.1f} MB', flush=True)
    if ended is not None:
        raise ended


class Publisher:
    """A thread that publishes a mirror while it is entered, and stops the run where that is no longer possible.

    It makes one pass at a time, and each pass takes the newest files: a checkpoint that is superseded before it was
    sent is left out, and the training waits for nothing. Where the time for retries is over, writing is denied or
    another process has taken the workdir, it interrupts the run as Ctrl-C does, and `finish` raises the reason.
    """

    def __init__(self, mirror: Mirror, lease: Lease):
        self.mirror, self._lease = mirror, lease
        self._ended, self._passing = threading.Event(), threading.Lock()
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
                with self._passing:
                    self.mirror.publish()
            except (UserError, StoppedError, OSError) as error:
                self._failure = error
                if not self._ended.is_set():  # else `finish` is about to raise it
                    _thread.interrupt_main()
                return

    @contextlib.contextmanager
    def hand_over(self) -> Iterator[None]:
        """Publishes everything there is; in the body nothing changes in the bucket. Raises as `finish`."""
        with self._passing:
            self.finish()
            yield

    def finish(self) -> tuple[int, int]:
        """Publishes everything that is left, while the thread does not. Returns the number of objects, and bytes.

        Raises:
          UnpublishedError: that is not possible; the mirror keeps everything.
          LostLeaseError: another process has taken the workdir.
        """
        try:
            if self._failure is not None:
                raise self._failure
            self._lease.check()  # also where nothing is left to publish
            return self.mirror.publish(everything=True)
        except (UserError, OSError) as error:
            raise UnpublishedError(
                f'stopped: not all of the run is in {self.mirror.remote} ({error}). All of it is in '
                f'{self.mirror.folder}: the same command on this machine publishes it, and continues'
            ) from None
