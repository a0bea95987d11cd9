"""The local mirror of a workdir in a bucket. The program works in the mirror.

Before a verb starts, the mirror fetches changes from the bucket. During the verb and at its end, the primary process
publishes changes: it copies them to the bucket. The other processes have their own mirrors, which fetch the changes.
"""

import _thread
import contextlib
import hashlib
import os
import pathlib
import re
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
_IN_ALL_PROCESSES = (PreemptedError, NonFiniteError)  # all processes of a run raise these at the same step

_MARKERS = {
    r'(?:.*/)?checkpoints/\d+/': checksums.FILE,
    r'(?:.*/)?\.unfinished/[^/]+/\d+/': checksums.FILE,  # checkpoints of the trials of a sweep
    r'(?:.*/)?(?:store/(?:\d+/)?|heldout/[^/]+/)(?!plans/|\d+/)': 'manifest.json',
    r'(?:.*/)?export/hf/': huggingface.CONFIG,
    r'(?:.*/)?export/orbax/': orbax.MODEL,
    r'(?:.*/)?export/google/': google.CONFIG,
    r'(?:.*/)?export/stablehlo/': stablehlo.FUNCTIONS,
    r'(?:.*/)?export/onnx/': 'README.md',
}
# Unfinished builds and saves. Pairing plans are also ignored, because they can be rebuilt quickly.
_IGNORED = r'(^|/)(partial|plans)/|\.unfinished$|\.orbax-checkpoint-tmp'
_RULES = MirrorRules(_MARKERS, _IGNORED, r'(.*/)?((ledger|metrics|time)\.jsonl|tensorboard/.*)')
_SIZES_ONLY = r'\.(tokens|sentences|segments)$'  # the doctor reads only the sizes of these files of token stores
_DOCTOR_RULES = MirrorRules(
    _MARKERS,
    rf'{_IGNORED}|(^|/)(export/|\.unfinished/|checkpoints/\d+/(?!{checksums.FILE}$))|{_SIZES_ONLY}',
)
# The checksum file of a checkpoint is mirrored without the other files, so that run=compile knows of the checkpoint.
_READ_ONLY_RULES = MirrorRules(
    _MARKERS, rf'{_IGNORED}|(^|/)((\.unfinished|store|heldout|export)/|checkpoints/(?!\d+/{checksums.FILE}$))'
)


class UnpublishedError(StoppedError):
    """Some results of the run are in its local mirror, but not in the bucket."""


@contextlib.contextmanager
def mirrored_workdir(url: str, use: str) -> Iterator[str]:
    """Yields the local mirror of a workdir in a bucket.

    Args:
      use: How the verb uses the workdir, see `Verb.bucket`.

    Raises:
      UserError: The bucket is missing, denies access or is unreachable, or another run works in the workdir. Raised
        before the body of the context. If `use` is 'look', also raised after the body.
      OtherStoppedError: Another process of this run raised an error.
      UnpublishedError, LostLeaseError: Some results are not in the bucket. Raised after the body.
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
    """Yields a temporary mirror, then publishes the files that the body wrote.

    With `inspect`, more files are mirrored, but sparse files replace the large files of token stores. Errors of the
    bucket are ignored, and nothing is published.
    """
    with tempfile.TemporaryDirectory(prefix='bertjax-') as top:
        mirror = Mirror(pathlib.Path(top, name), remote, _DOCTOR_RULES if inspect else _READ_ONLY_RULES)
        make_directory(mirror.folder)
        with contextlib.suppress(UserError) if inspect else contextlib.nullcontext():
            mirror.pull()
            for object_name, source in remote.find().items() if inspect else ():
                path = mirror.folder / object_name
                if re.search(_SIZES_ONLY, object_name) and path.parent.is_dir():
                    path.touch()
                    os.truncate(path, source.size)  # a sparse file, which takes no space
        register_address(mirror.folder, remote.url)
        yield mirror.folder
        if not inspect:
            mirror.publish(everything=True)


@contextlib.contextmanager
def _publish_mirror(folder: pathlib.Path, remote: RemoteFolder, home: pathlib.Path) -> Iterator[None]:
    """Publishes the mirror during the body and after it, even after an error. Holds the lease of the workdir."""
    identity = home / 'identity'  # a random id of the mirror, because host names need not be unique
    if not identity.exists():
        write_atomic(identity, secrets.token_hex(8))
    lease = Lease(remote, identity.read_text(encoding='utf-8'))
    publisher = Publisher(Mirror(folder, remote.with_check(lease.check), _RULES), lease)
    body_error = None
    with contextlib.ExitStack() as stack:
        with separate_workdirs(publisher.hand_over):
            with primary_first():
                stack.enter_context(lock_directory(home, f'works in {remote}'))
                lease.take(print)
                stack.callback(lease.release)
                publisher.mirror.pull()
            print(f'{remote} is mirrored in {folder}', flush=True)
            try:
                with publisher:
                    yield
            except BaseException as error:
                body_error = error
        _finish(publisher, body_error)


@contextlib.contextmanager
def _fetch_mirror(mirror: Mirror) -> Iterator[None]:
    """Fetches the published changes whenever the primary process is in the context `Publisher.hand_over`."""

    @contextlib.contextmanager
    def fetch() -> Iterator[None]:
        mirror.pull()
        yield

    body_error = None
    with separate_workdirs(fetch):
        with primary_first():
            pass
        try:
            yield
        except _IN_ALL_PROCESSES as error:
            body_error = error
    with primary_first():  # raises if the primary process could not publish everything
        pass
    if body_error is not None:
        raise body_error


def _finish(publisher: 'Publisher', body_error: BaseException | None) -> None:
    """Publishes the remaining changes, and raises `body_error`, the error of the body.

    The other processes wait for this function if their bodies have also ended.
    """
    try:
        all_ended = body_error is None or isinstance(body_error, _IN_ALL_PROCESSES)
        with primary_first() if all_ended else contextlib.nullcontext():
            count, size = publisher.finish()
    except StoppedError as failure:
        if body_error is not None and not isinstance(body_error, (KeyboardInterrupt, PreemptedError)):
            logging.warning('%s', failure)  # the error of the body is raised, because it came first
            raise body_error from None
        raise failure from body_error
    if count:
        print(f'published to {publisher.mirror.remote}: {count:,} objects, {size / 1e6:,.1f} MB', flush=True)
    if body_error is not None:
        raise body_error


class Publisher:
    """A thread that publishes a mirror within its context, and stops the run if publishing fails.

    Each pass of the thread publishes the current files, so a checkpoint that was already replaced is not sent. With one
    process, the training does not wait for the thread. The thread fails if retries take too long, writing is denied, or
    another process has taken the workdir. It then interrupts the run as Ctrl-C does, and `finish` raises the error.
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
                if not self._ended.is_set():  # after the end, `finish` raises the error
                    _thread.interrupt_main()
                return

    @contextlib.contextmanager
    def hand_over(self) -> Iterator[None]:
        """Publishes all files. Within the context, the bucket does not change. Raises the errors of `finish`."""
        with self._pass_lock:
            self.finish()
            yield

    def finish(self) -> tuple[int, int]:
        """Publishes all remaining files. The thread must not publish at the same time.

        Returns:
          The numbers of published objects and bytes.

        Raises:
          UnpublishedError: A file cannot be published. It stays in the mirror.
          LostLeaseError: Another process has taken the workdir.
        """
        try:
            if self._failure is not None:
                raise self._failure
            self._lease.check()  # `publish` checks the lease only if there is a file to publish.
            return self.mirror.publish(everything=True)
        except (UserError, OSError) as error:
            raise UnpublishedError(
                f'stopped: not all of the run is in {self.mirror.remote} ({error}). The complete run is in '
                f'{self.mirror.folder}: run the same command on this machine to publish it and to continue'
            ) from None
