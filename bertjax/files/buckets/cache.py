"""Objects of buckets as files on the local disk: each fetched once, whole or not at all, and looked at before use."""

import fcntl
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import BinaryIO

from etils import epath

from bertjax.errors import UserError
from bertjax.files.atomic import checksum, make_directory, sync_directory
from bertjax.files.buckets.addresses import is_bucket, parts_of
from bertjax.files.buckets.objects import PIECE, Bucket, Object, content_sum
from bertjax.files.buckets.patience import at_once
from bertjax.files.disk import writing
from bertjax.files.small_files import read_json_or_none

VARIABLE = 'BERTJAX_CACHE'
_TOLD = 1 << 20  # bytes from which a person is told that they are fetched
_checked: set[tuple[str, int, int]] = set()  # files whose checksums this process has compared, as they were then


def cache_folder() -> pathlib.Path:
    """Where copies lie: BERTJAX_CACHE, else `~/.cache/bertjax`, or where XDG_CACHE_HOME says.

    Raises:
      UserError: a user without a home.
    """
    if os.environ.get(VARIABLE):
        return pathlib.Path(os.environ[VARIABLE]).expanduser().absolute()
    try:
        return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'bertjax'
    except RuntimeError:
        raise UserError(VARIABLE, 'no home', 'a folder for copies of objects', f'set {VARIABLE}') from None


def open_file(path: epath.PathLike) -> BinaryIO:
    """Opens a file for reading, local or in a bucket, from where it is fetched first."""
    return epath.Path(local_file(os.fspath(path)) if is_bucket(path) else path).open('rb')


@functools.lru_cache(maxsize=1 << 16)
def _single(url: str) -> tuple[Bucket, Object]:
    bucket = Bucket(url)
    found = bucket.about()
    if found is None:
        raise UserError(url, 'no such object any more', 'the one that was listed', 'start again')
    return bucket, found


def local_file(url: str) -> pathlib.Path:
    """The local copy of an object, as the object was when this process first asked for it."""
    bucket, found = _single(url)
    folder, name = _place(url.rpartition('/')[0], {found.name: found}), url.rpartition('/')[2]
    target = folder / name
    if not is_whole(target, found):
        fetch(bucket, found, target)
    return target


def local_copy(url: str, where: str, beside: Collection[str] = ()) -> pathlib.Path:
    """The local copy of an object, or of a folder of them, fetched where it is not there already.

    Of a workdir with an export neither checkpoints nor stores are fetched. A path that others only begin with, as that
    of a checkpoint of TensorFlow, is a path in the copy of its folder.

    Args:
      url: gs://… or s3://…
      where: the config key, for messages.
      beside: names of objects beside a single one that are fetched with it, where they are there.

    Returns:
      A path where nothing is, where the bucket has nothing there either.

    Raises:
      UserError: see `Bucket` and `fetch`.
    """
    path = parts_of(url)[2]
    url = url.rstrip('/')
    if path and Bucket(url, where).about() is not None:
        above, _, name = url.rpartition('/')
        bucket = Bucket(above, where)
        found = {one.name: one for one in map(bucket.about, {name, *beside}) if one is not None}
        return _fetched(bucket, found) / name
    bucket = Bucket(url, where)
    found = bucket.objects()
    if not found and path:
        above, _, name = url.rpartition('/')
        begun = Bucket(url, where).objects(beginning=True)
        if any(rest.startswith('.') for rest in begun):
            bucket = Bucket(above, where)
            return _fetched(bucket, {n: o for n, o in bucket.objects().items() if '/' not in n}) / name
    if 'config.json' in found and any(name.startswith('export/') for name in found):
        found = {name: o for name, o in found.items() if not name.startswith(('checkpoints/', 'store/'))}
    return _fetched(bucket, found)


def _place(url: str, found: Mapping[str, Object]) -> pathlib.Path:
    """The folder for these objects, as they are now: others, or another content, have a folder of their own."""
    rows = [[o.name, o.size, o.tag] for _, o in sorted(found.items())]
    key = hashlib.sha256(json.dumps([url, rows]).encode()).hexdigest()[:24]
    scheme, bucket, path = parts_of(url)
    return cache_folder() / 'objects' / key / scheme / bucket / path


def _fetched(bucket: Bucket, found: Mapping[str, Object]) -> pathlib.Path:
    folder = _place(bucket.url, found)
    if not found:
        return folder / 'nothing'
    fetch_all(bucket, {one: folder / one.name for one in found.values() if not is_whole(folder / one.name, one)})
    return folder


def fetch_all(bucket: Bucket, targets: Mapping[Object, pathlib.Path], *, remember: bool = True) -> None:
    """Fetches objects, several at a time; see `fetch`."""
    size = sum(one.size for one in targets)
    if size >= _TOLD:
        print(f'fetching {bucket}: {len(targets):,} objects, {size / 1e6:,.0f} MB', flush=True)
    at_once(bucket, lambda asked, row: fetch(asked, *row, remember=remember), targets.items())


def fetch(bucket: Bucket, found: Object, target: pathlib.Path, *, remember: bool = True) -> None:
    """Fetches an object: what a killed process has fetched of it is gone on with, and another's work is waited for.

    Its size, the bucket's own sum, and that it has not changed meanwhile are checked before it counts.

    Args:
      bucket: where it is.
      found: the object.
      target: the file.
      remember: keep what `is_whole` goes by beside the file.

    Raises:
      UserError: it changes, or is not what its sum says; see `Bucket` too.
      OSError: of the disk, which knows the path and how much was wanted.
    """
    part = target.with_name(f'.{target.name}.part-{hashlib.sha256(found.tag.encode()).hexdigest()[:12]}')
    with writing(target, found.size):
        make_directory(target.parent)
        wrong = _filled(bucket, found, target, part, remember) and _filled(bucket, found, target, part, remember)
    if wrong:  # twice
        url, fix = f'{bucket}/{found.name}'.rstrip('/'), 'start again when nobody writes to it'
        raise UserError(url, wrong, f'{found.size:,} bytes of one content', fix)


def _filled(bucket: Bucket, found: Object, target: pathlib.Path, part: pathlib.Path, remember: bool) -> str | None:
    """Fetches what `part` lacks, and makes it `target`; or removes it, and says what is wrong with it."""
    with part.open('ab') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not part.exists() or part.stat().st_ino != os.fstat(file.fileno()).st_ino:
            # By another process, while this one waited.
            return None if is_whole(target, found) else _filled(bucket, found, target, part, remember)
        _append(bucket, found, file)
        wrong = _difference(bucket, found, part)
        if wrong is not None:
            part.unlink()
            return wrong
        os.fsync(file.fileno())
        if remember:
            facts = {'bytes': found.size, 'tag': found.tag, 'checksum': checksum(part, 'blake2b-128')}
            # By each of several processes, also those that write nothing else; half of it is as good as none.
            _record(target).write_text(json.dumps(facts), encoding='utf-8')
        part.replace(target)
        sync_directory(target.parent)
        if remember:
            _remember(target)
        return None


def _append(bucket: Bucket, found: Object, file: BinaryIO) -> None:
    """What `file` lacks of the object."""
    if file.tell() > found.size:
        file.truncate(0)
    while (begin := file.seek(0, os.SEEK_END)) < found.size:
        try:
            file.write(bucket.read(found.name, begin, min(begin + PIECE, found.size)))
            file.flush()
        except FileNotFoundError:
            url = f'{bucket}/{found.name}'.rstrip('/')
            raise UserError(url, 'no such object any more', 'the one that was listed', 'start again') from None


def _difference(bucket: Bucket, found: Object, part: pathlib.Path) -> str | None:
    """What is wrong with the bytes that came; None where nothing is."""
    now = bucket.about(found.name)
    if now is None or now.tag != found.tag:
        return 'another content while it was read'
    if found.sum and content_sum(part, found.sum.partition(':')[0]) != found.sum and bucket.keeps_sum(found.name):
        return f'other bytes than its sum {found.sum} says'
    return None


def _record(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f'.{target.name}.fetched')


def is_whole(target: pathlib.Path, found: Object) -> bool:
    """Whether a file is the object as it was fetched; its bytes are read once a process."""
    facts = read_json_or_none(_record(target), lambda facts: (facts['bytes'], facts['tag'], facts['checksum']))
    if facts is None or facts[:2] != (found.size, found.tag) or not target.is_file():
        return False
    if target.stat().st_size != found.size:
        return False
    if _known(target) not in _checked:
        if checksum(target, 'blake2b-128') != facts[2]:
            return False
        _remember(target)
    return True


def _known(path: pathlib.Path) -> tuple[str, int, int]:
    facts = path.stat()
    return str(path), facts.st_size, facts.st_mtime_ns


def _remember(path: pathlib.Path) -> None:
    _checked.add(_known(path))
