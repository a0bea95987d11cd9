"""A workdir in a bucket: what the program works on is a folder of this machine, its mirror.

Before a verb the mirror is brought to what the bucket has; beside it, and at its end, what changes is published.
"""

import contextlib
import hashlib
import pathlib
import secrets
import tempfile
from collections.abc import Iterator

from absl import logging

from bertjax.checkpoint import checksums
from bertjax.convert import orbax, stablehlo
from bertjax.convert.google import read as google
from bertjax.convert.huggingface import read as huggingface
from bertjax.errors import PreemptedError, StoppedError
from bertjax.files.atomic import exclusive, make_directory, write_atomic
from bertjax.files.buckets.addresses import parts_of
from bertjax.files.buckets.cache import cache_folder
from bertjax.files.buckets.lease import Lease
from bertjax.files.buckets.mirror import Mirror, Wholes
from bertjax.files.buckets.objects import Bucket
from bertjax.files.buckets.publisher import Publisher
from bertjax.files.paths import name_as

# Verbs that look at a workdir, also while a run is at work there, and leave one file: without a lease.
LOOKING = ('compile', 'plot', 'show')

_STORE = r'(?:.*/)?(?:store/(?:\d+/)?|heldout/[^/]+/)(?!plans/|\d+/)'
_LASTS = {
    r'(?:.*/)?checkpoints/\d+/': checksums.FILE,
    _STORE: 'manifest.json',
    r'(?:.*/)?export/hf/': huggingface.CONFIG,
    r'(?:.*/)?export/orbax/': orbax.MODEL,
    r'(?:.*/)?export/google/': google.CONFIG,
    r'(?:.*/)?export/stablehlo/': stablehlo.FUNCTIONS,
}
# What a build or a save is still at, and pairing plans, which are made again in a moment.
_LEFT_OUT = r'(^|/)(partial|plans)/|\.unfinished$|\.orbax-checkpoint-tmp'
WORKDIR = Wholes(_LASTS, _LEFT_OUT)
_LOOKED_AT = Wholes(_LASTS, rf'{_LEFT_OUT}|(^|/)(checkpoints|store|heldout|export)/')


@contextlib.contextmanager
def worked_on(url: str, verb: str) -> Iterator[str]:
    """The local folder in which a verb works on the workdir `url`.

    Raises:
      UserError: a bucket that is missing, denied or out of reach, or a workdir that another process works in: before
        the body.
      UnpublishedError, LostLeaseError: after it, where what it has computed is not in the bucket.
    """
    bucket = Bucket(url, '--workdir')
    name = parts_of(bucket.url)[2].rpartition('/')[2] or parts_of(bucket.url)[1]
    if verb in LOOKING:
        with tempfile.TemporaryDirectory(prefix='bertjax-') as top:
            mirror = Mirror(pathlib.Path(top, name), bucket, _LOOKED_AT)
            make_directory(mirror.folder)
            mirror.reconcile()
            name_as(mirror.folder, bucket.url)
            yield str(mirror.folder)
            mirror.publish(all_of_it=True)
        return
    home = cache_folder() / 'workdirs' / hashlib.sha256(bucket.url.encode()).hexdigest()[:16]
    folder = home / name
    make_directory(folder)
    with exclusive(home, f'works in {bucket}'):
        lease = Lease(bucket, _identity(home))
        lease.take(print)
        try:
            mirror = Mirror(folder, bucket, WORKDIR)
            mirror.reconcile()
            name_as(folder, bucket.url)
            print(f'{bucket}, worked on in {folder}', flush=True)
            with _published(mirror, lease):
                yield str(folder)
        finally:
            lease.give_back()


def _identity(home: pathlib.Path) -> str:
    """Tells this mirror from those of other machines, whatever these are called."""
    path = home / 'identity'
    if not path.exists():
        write_atomic(path, secrets.token_hex(8))
    return path.read_text(encoding='utf-8')


@contextlib.contextmanager
def _published(mirror: Mirror, lease: Lease) -> Iterator[None]:
    """What the body does in the mirror is published, meanwhile and, whatever became of it, at the end."""
    publisher, ended = Publisher(mirror, lease), None
    try:
        with publisher:
            yield
    except BaseException as error:
        ended = error
    try:
        count, size = publisher.finish()
    except StoppedError as failure:
        if ended is not None and not isinstance(ended, (KeyboardInterrupt, PreemptedError)):
            logging.warning('%s', failure)  # beside what went wrong before
            raise ended from None
        raise failure from ended
    if count:
        print(f'published to {mirror.bucket}: {count:,} objects, {size / 1e6:,.1f} MB', flush=True)
    if ended is not None:
        raise ended
