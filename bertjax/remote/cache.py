"""Local copies of bucket objects. A copy is complete and verified before it is used, and later runs reuse it."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import BinaryIO

from bertjax.errors import UserError
from bertjax.files.atomic import is_at, lock_file, make_directory, sync_directory
from bertjax.files.disk import annotate_write_errors
from bertjax.remote.object_store import RemoteFolder, RemoteObject, content_checksum, split_address

VARIABLE = 'BERTJAX_CACHE'
PIECE = 16 << 20  # bytes per request
_PRINT_FROM = 1 << 20  # bytes; smaller fetches are not printed
_verified: set[tuple[pathlib.Path, int]] = set()  # (path, modification time) of each verified copy


def cache_folder() -> pathlib.Path:
    """Returns the folder of all copies: BERTJAX_CACHE, else `bertjax` in XDG_CACHE_HOME or in `~/.cache`.

    Raises:
      UserError: The user has no home directory.
    """
    try:
        if os.environ.get(VARIABLE):
            return pathlib.Path(os.environ[VARIABLE]).expanduser().absolute()
        return pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'bertjax'
    except RuntimeError:
        fix = 'set it to an absolute path'
        raise UserError(VARIABLE, 'no home directory', 'a folder for copies of objects', fix) from None


@functools.lru_cache(maxsize=1 << 16)
def copy_object(url: str) -> pathlib.Path:
    """Returns the local copy of an object. Until `cache_clear`, calls return the same copy.

    Raises:
      UserError: The object does not exist; see also `RemoteFolder` and `fetch`.
    """
    parent, _, name = url.rpartition('/')
    folder = RemoteFolder(parent, url)
    source = folder.info(name)
    if source is None:
        raise _missing_error(url)
    target = _copies_folder(folder, [source]) / name
    if not _is_complete(target, source):
        fetch(folder, source, target)
    return target


def copy_path(url: str, where: str, beside: Collection[str] = (), checkpoints: bool = False) -> pathlib.Path:
    """Returns the local copy of an object, a folder of objects, or a TensorFlow checkpoint and the files beside it.

    A workdir with an export is copied without its token stores and, unless `checkpoints` is True, without its
    checkpoints. If the bucket has nothing at `url`, the returned path does not exist.

    Args:
      url: gs://… or s3://…; for a TensorFlow checkpoint, the common prefix of its files.
      beside: The names of further objects to fetch from the same folder, if `url` is an object. They need not exist.

    Raises:
      UserError: See `RemoteFolder` and `fetch`.
    """
    url = url.rstrip('/')
    above, _, name = url.rpartition('/')
    parent = RemoteFolder(above, where) if split_address(url)[2] else None
    if parent and (source := parent.info(name)):
        return _fetch_copies(parent, [source, *filter(None, map(parent.info, beside))]) / name
    folder = RemoteFolder(url, where)
    objects = folder.find()
    if parent and not objects and parent.info(f'{name}.index'):
        return _fetch_copies(parent, [item for item in parent.find().values() if '/' not in item.name]) / name
    if 'config.json' in objects and any(name.startswith('export/') for name in objects):
        skipped = ('store/', 'heldout/') if checkpoints else ('checkpoints/', 'store/', 'heldout/')
        objects = {name: item for name, item in objects.items() if not name.startswith(skipped)}
    return _fetch_copies(folder, objects.values())


def _copies_folder(folder: RemoteFolder, objects: Iterable[RemoteObject]) -> pathlib.Path:
    """Returns the local folder for these versions of the objects. Each set of versions has a separate folder."""
    rows = sorted([item.name, item.size, item.version] for item in objects)
    key = hashlib.sha256(json.dumps([folder.url, rows]).encode()).hexdigest()[:24]
    return pathlib.Path(cache_folder(), 'objects', key, *split_address(folder.url))


def _fetch_copies(folder: RemoteFolder, objects: Collection[RemoteObject]) -> pathlib.Path:
    target = _copies_folder(folder, objects)
    if not objects:
        return target / 'nothing'
    fetch_all(folder, {item: target / item.name for item in objects if not _is_complete(target / item.name, item)})
    return target


def _is_complete(target: pathlib.Path, source: RemoteObject) -> bool:
    """Returns whether an undamaged copy exists. A process verifies the checksum of an unchanged copy only once."""
    if not target.is_file() or target.stat().st_size != source.size or not _checksum_path(target).is_file():
        return False
    state = target, target.stat().st_mtime_ns
    if state not in _verified and content_checksum(target, 'md5') == _checksum_path(target).read_text():
        _verified.add(state)
    return state in _verified


def _checksum_path(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f'.{target.name}.checksum')


def fetch_all(folder: RemoteFolder, targets: Mapping[RemoteObject, pathlib.Path], *, copies: bool = True) -> None:
    """Fetches objects, several at a time; see `fetch`."""
    size = sum(item.size for item in targets)
    if size >= _PRINT_FROM:
        print(f'fetching {folder}: {len(targets):,} objects, {size / 1e6:,.0f} MB', flush=True)
    folder.run_parallel(lambda folder, row: fetch(folder, *row, copies), targets.items())


def fetch(folder: RemoteFolder, source: RemoteObject, target: pathlib.Path, copy: bool = True) -> None:
    """Fetches an object, or continues the partial file of a killed process.

    If another process is fetching the same object, the function waits for it. With `copy`, a checksum is written beside
    the file, so that other processes can verify the file.

    Raises:
      UserError: The object was removed, or it changed or did not match its checksum in both attempts. See also
        `RemoteFolder`.
      OSError: The disk refuses the write. The error names the path and the size.
    """
    version = hashlib.sha256(source.version.encode()).hexdigest()[:12]
    part = target.with_name(f'.{target.name}.part-{version}')
    with annotate_write_errors(target, source.size):
        make_directory(target.parent)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(part.open('ab'))
            if not lock_file(file.fileno()):  # other processes may write to this file, so use another
                part.unlink(missing_ok=True)
                part = part.with_name(f'{part.name}-{secrets.token_hex(4)}')
                file = stack.enter_context(part.open('ab'))
                stack.callback(part.unlink, missing_ok=True)
            elif not is_at(part, file.fileno()):  # another process has completed the file meanwhile
                return
            damage = _fill(folder, source, file, part) and _fill(folder, source, file, part)
            if damage:
                fix = 'start again when no process writes to this object'
                raise UserError(f'{folder}/{source.name}', damage, f'{source.size:,} bytes that do not change', fix)
            os.fsync(file.fileno())
            if copy:  # not `write_atomic`, because processes whose writes are disabled need this file too
                _checksum_path(target).write_text(content_checksum(part, 'md5'))
            part.replace(target)
            sync_directory(target.parent)
            _verified.add((target, target.stat().st_mtime_ns))


def _fill(folder: RemoteFolder, source: RemoteObject, file: BinaryIO, part: pathlib.Path) -> str | None:
    """Completes a partial file. If the result differs from the object, empties the file and returns the reason."""
    if file.tell() > source.size:
        file.truncate(0)
    while (begin := file.seek(0, os.SEEK_END)) < source.size:
        try:
            file.write(folder.read(source.name, begin, min(begin + PIECE, source.size)))
            file.flush()
        except FileNotFoundError:
            raise _missing_error(f'{folder}/{source.name}') from None
    now, damage = folder.info(source.name), None
    if now is None or now.version != source.version:
        damage = 'content that changed while it was read'
    elif not folder.has_content(source, part):
        damage = f'content that does not match its checksum {source.checksum}'
    if damage:
        file.truncate(0)
    return damage


def _missing_error(url: str) -> UserError:
    return UserError(url, 'no such object', 'the object that was listed before', 'start again')
