"""A workdir in a bucket: what the program works on is a folder of this machine, its mirror.

Before a verb the mirror is brought to what the bucket has; beside it, and at its end, what changes is published. Of
several processes each has a mirror, on whatever machine: the first publishes, the others fetch.
"""

import contextlib
import hashlib
import pathlib
import secrets
import tempfile
from collections.abc import Iterator

import jax
from absl import logging

from bertjax.checkpoint import checksums
from bertjax.convert import orbax, stablehlo
from bertjax.convert.google import read as google
from bertjax.convert.huggingface import read as huggingface
from bertjax.errors import NonFiniteError, PreemptedError, StoppedError, UserError
from bertjax.files.atomic import exclusive, make_directory, write_atomic
from bertjax.files.buckets.addresses import parts_of
from bertjax.files.buckets.cache import cache_folder
from bertjax.files.buckets.lease import Lease
from bertjax.files.buckets.mirror import Mirror, Wholes
from bertjax.files.buckets.objects import Bucket
from bertjax.files.buckets.publisher import Publisher
from bertjax.files.paths import name_as
from bertjax.parallel.distributed import is_primary, primary_first, separate_workdirs

_ALIKE = (PreemptedError, NonFiniteError)  # what ends all processes of a run at the same step

_STORE = r'(?:.*/)?(?:store/(?:\d+/)?|heldout/[^/]+/)(?!plans/|\d+/)'
_LASTS = {
    r'(?:.*/)?checkpoints/\d+/': checksums.FILE,
    r'\.unfinished/[^/]+/\d+/': checksums.FILE,  # of the trials of a sweep
    _STORE: 'manifest.json',
    r'(?:.*/)?export/hf/': huggingface.CONFIG,
    r'(?:.*/)?export/orbax/': orbax.MODEL,
    r'(?:.*/)?export/google/': google.CONFIG,
    r'(?:.*/)?export/stablehlo/': stablehlo.FUNCTIONS,
}
# What a build or a save is still at, and pairing plans, which are made again in a moment.
_LEFT_OUT = r'(^|/)(partial|plans)/|\.unfinished$|\.orbax-checkpoint-tmp'
WORKDIR = Wholes(_LASTS, _LEFT_OUT)
_OF_RUN = Wholes(_LASTS, rf'{_LEFT_OUT}|(^|/)(export/|\.unfinished/|checkpoints/\d+/(?!{checksums.FILE}$))')
_LOOKED_AT = Wholes(_LASTS, rf'{_LEFT_OUT}|(^|/)(checkpoints|\.unfinished|store|heldout|export)/')


@contextlib.contextmanager
def mirrored_workdir(url: str, use: str) -> Iterator[str]:
    """The local folder in which a verb works on the workdir `url`; `use` is what it does to one, see `Verb.bucket`.

    Raises:
      UserError: a bucket that is missing, denied or out of reach, or a workdir that another run works in: before
        the body.
      OtherStoppedError: another process of this run has raised.
      UnpublishedError, LostLeaseError: after it, where what it has computed is not in the bucket.
    """
    bucket = Bucket(url, '--workdir')
    name = parts_of(bucket.url)[2].rpartition('/')[2] or parts_of(bucket.url)[1]
    if use != 'write':
        with _looked_at(bucket, name, inspect=use == 'inspect') as folder:
            yield str(folder)
        return
    home = cache_folder() / 'workdirs' / hashlib.sha256(bucket.url.encode()).hexdigest()[:16]
    folder = (home if is_primary() else home / f'process{jax.process_index()}') / name
    make_directory(folder)
    with _leading(folder, bucket, home) if is_primary() else _following(Mirror(folder, bucket, WORKDIR)):
        name_as(folder, bucket.url)
        yield str(folder)


@contextlib.contextmanager
def _looked_at(bucket: Bucket, name: str, *, inspect: bool) -> Iterator[pathlib.Path]:
    """A mirror for as long as a verb looks at it. The doctor sees more, and says itself what is denied."""
    with tempfile.TemporaryDirectory(prefix='bertjax-') as top:
        mirror = Mirror(pathlib.Path(top, name), bucket, _OF_RUN if inspect else _LOOKED_AT)
        make_directory(mirror.folder)
        with contextlib.suppress(UserError) if inspect else contextlib.nullcontext():
            mirror.reconcile()
        name_as(mirror.folder, bucket.url)
        yield mirror.folder
        if not inspect:
            mirror.publish(all_of_it=True)


@contextlib.contextmanager
def _leading(folder: pathlib.Path, bucket: Bucket, home: pathlib.Path) -> Iterator[None]:
    """The first process, or the only one: it holds the lease, and alone publishes, meanwhile and, whatever became of
    the body, at the end."""
    lease = Lease(bucket, _identity(home))
    mirror = Mirror(folder, bucket.guarded(lease.check), WORKDIR)
    publisher, ended = Publisher(mirror, lease), None
    with contextlib.ExitStack() as held:
        with separate_workdirs(publisher.given):
            with primary_first():
                held.enter_context(exclusive(home, f'works in {bucket}'))
                lease.take(print)
                held.callback(lease.give_back)
                mirror.reconcile()
            print(f'{bucket}, worked on in {folder}', flush=True)
            try:
                with publisher:
                    yield
            except BaseException as error:
                ended = error
        _finish(publisher, bucket, ended)


@contextlib.contextmanager
def _following(mirror: Mirror) -> Iterator[None]:
    """Another process: its mirror has what the first has published, each time that the first hands it over."""

    @contextlib.contextmanager
    def taken() -> Iterator[None]:
        mirror.reconcile()
        yield

    ended = None
    with separate_workdirs(taken):
        with primary_first():
            pass
        try:
            yield
        except _ALIKE as error:
            ended = error
    with primary_first():  # raises where the first could not publish all
        pass
    if ended is not None:
        raise ended


def _identity(home: pathlib.Path) -> str:
    """Tells this mirror from those of other machines, whatever these are called."""
    path = home / 'identity'
    if not path.exists():
        write_atomic(path, secrets.token_hex(8))
    return path.read_text(encoding='utf-8')


def _finish(publisher: Publisher, bucket: Bucket, ended: BaseException | None) -> None:
    """Publishes what is left, and raises what has ended the body; the other processes wait where that ended theirs."""
    try:
        with primary_first() if ended is None or isinstance(ended, _ALIKE) else contextlib.nullcontext():
            count, size = publisher.finish()
    except StoppedError as failure:
        if ended is not None and not isinstance(ended, (KeyboardInterrupt, PreemptedError)):
            logging.warning('%s', failure)  # beside what went wrong before
            raise ended from None
        raise failure from ended
    if count:
        print(f'published to {bucket}: {count:,} objects, {size / 1e6:,.1f} MB', flush=True)
    if ended is not None:
        raise ended
