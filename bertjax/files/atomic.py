"""Writes files and directories atomically, computes checksums, and locks directories."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import os
import pathlib
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from absl import logging
from etils import epath

from bertjax.errors import StoppedError, UserError
from bertjax.files.disk import annotate_write_errors

_ALGORITHMS = {'sha256': hashlib.sha256, 'blake2b-128': lambda: hashlib.blake2b(digest_size=16)}
_writes_disabled = False


def disable_writes() -> None:
    """Makes this process discard its writes and take no locks. Only the primary process of a run writes."""
    global _writes_disabled
    _writes_disabled = True


def writes_are_disabled() -> bool:
    """Returns whether `disable_writes` was called."""
    return _writes_disabled


def sync_directory(path: str | os.PathLike) -> None:
    """Flushes a local directory to disk, so that a power loss cannot undo the creation or renaming of its files."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support this
            raise
    finally:
        os.close(handle)


def sync_tree(path: str | os.PathLike) -> None:
    """Flushes a local directory and everything below it to disk."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            with open(os.path.join(folder, name), 'rb') as file:
                os.fsync(file.fileno())
        sync_directory(folder)


def make_directory(path: str | os.PathLike) -> None:
    """Makes a local directory and its missing parents, and flushes them to disk."""
    path = pathlib.Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


class AtomicFile:
    """A binary file that is written under a temporary name. `close` flushes it to disk and renames it to `path`.

    A `with` block closes the file at its end, or removes it after an exception. The open file `file` can also be read.
    """

    def __init__(self, path: epath.PathLike):
        self.path, self._size = pathlib.Path(path), 0
        self._discards_writes = writes_are_disabled()
        if self._discards_writes:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
            return
        make_directory(self.path.parent)
        # The name is unique, because the workers of Beam on several machines may write the same file.
        self._temporary = self.path.with_name(f'.{self.path.name}.tmp-{secrets.token_hex(8)}')
        self.file = self._temporary.open('w+b')

    def __enter__(self) -> 'AtomicFile':
        return self

    def __exit__(self, kind, *error) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def write(self, data: bytes | np.ndarray) -> None:
        """Appends bytes, or the bytes of a contiguous array."""
        self._size += memoryview(data).nbytes
        with annotate_write_errors(self.path, self._size):
            self.file.write(data)

    def close(self) -> int:
        """Flushes and renames the file, and returns its size in bytes."""
        if self._discards_writes:
            self.file.close()
            return self._size
        try:
            with annotate_write_errors(self.path, self._size):
                self.file.flush()
                os.fsync(self.file.fileno())
                size = self.file.tell()
                self.file.close()
                self._temporary.replace(self.path)
                sync_directory(self.path.parent)
        except BaseException:
            self._discard()
            raise
        return size

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk, `close` repeats the failed write
            self.file.close()
        if not self._discards_writes:
            self._temporary.unlink(missing_ok=True)


def write_atomic(path: epath.PathLike, data: bytes | str) -> None:
    """Writes bytes or UTF-8 text through `AtomicFile`."""
    with AtomicFile(path) as target:
        target.write(data.encode('utf-8') if isinstance(data, str) else data)


def write_zip(path: epath.PathLike, files: Mapping[str, str]) -> None:
    """Writes a zip archive of {name: text}. Its dates are constant, so equal texts give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    write_atomic(path, buffer.getvalue())


@contextlib.contextmanager
def atomic_directory(target: epath.PathLike) -> Iterator[str]:
    """Yields a new local directory that replaces `target` after the body, or is removed if the body raises."""
    if writes_are_disabled():
        with tempfile.TemporaryDirectory() as scratch:
            yield scratch
        return
    path = os.path.realpath(os.fspath(target))  # a symbolic link to the directory stays
    parent, name = os.path.split(path)
    make_directory(parent)
    recover_directory(path)
    fresh = os.path.join(parent, f'.{name}.new')
    shutil.rmtree(fresh, ignore_errors=True)
    os.mkdir(fresh)
    try:
        with annotate_write_errors(fresh, 0):
            yield fresh
            replace_directory(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def replace_directory(fresh: str | os.PathLike, path: str | os.PathLike) -> None:
    """Flushes a finished local directory to disk and renames it to `path`, replacing an existing directory."""
    old = _backup_path(path)
    sync_tree(fresh)
    if os.path.isdir(path):
        if os.path.lexists(old):  # a file in the older backup could not be removed
            aside = tempfile.mkdtemp(prefix=f'{os.path.basename(old)}.', dir=os.path.dirname(old))
            os.rename(old, os.path.join(aside, 'old'))
        os.rename(path, old)
    os.rename(fresh, path)
    sync_directory(os.path.dirname(path))
    shutil.rmtree(old, ignore_errors=True)


def recover_directory(path: str | os.PathLike) -> None:
    """Cleans up after a process that died in `replace_directory`: restores or removes the old directory."""
    old = _backup_path(path)
    if os.path.isdir(old) and not os.path.isdir(path):
        os.rename(old, path)
    for leftover in (old, *glob.glob(f'{glob.escape(old)}.*')):
        shutil.rmtree(leftover, ignore_errors=True)


def _backup_path(path: str | os.PathLike) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f'.{name}.old')


def checksum(path: str | os.PathLike, algorithm: Literal['sha256', 'blake2b-128'] = 'sha256') -> str:
    """Returns the checksum of a local file's content, in hex."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, _ALGORITHMS[algorithm]).hexdigest()


@contextlib.contextmanager
def lock_directory(directory: str | os.PathLike, doing: str) -> Iterator[None]:
    """Locks an existing local directory against other processes during the body. If the process dies, the lock ends.

    On NFS, the lock holds only between the processes of one machine. If the file system does not support locks, a
    warning is logged and the body runs without a lock. In error messages, `doing` describes the process that holds the
    lock, for example 'builds this store'.

    Raises:
      UserError: Another process holds the lock, or the directory was removed or moved during the body.
    """
    if writes_are_disabled():
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            if not lock_file(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                logging.warning('%s cannot be locked: do not start a second process in it.', directory)
        except BlockingIOError:
            found, fix = f'another process that {doing}', 'wait for it, or end it'
            raise UserError(str(directory), found, 'one process at a time', fix) from None
        try:
            yield
        except (UserError, StoppedError):
            raise
        except Exception as error:  # a missing directory causes errors of many types
            if is_at(directory, handle):
                raise
            raise _moved_error(directory) from error
        if not is_at(directory, handle):  # the files are in the moved directory, not at this path
            raise _moved_error(directory)
    finally:
        os.close(handle)


def lock_file(handle: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Locks an open file or directory until it is closed. Returns False if the file system does not support locks.

    `operation` is an operation of `fcntl.flock`; by default, the function waits for the lock.

    Raises:
      BlockingIOError: Another process holds the lock, and `operation` does not wait.
    """
    try:
        fcntl.flock(handle, operation)
        return True
    except BlockingIOError:
        raise
    except OSError:
        return False


def is_at(path: str | os.PathLike, handle: int) -> bool:
    """Returns whether the open file or directory `handle` is still at this path. Returns True if this is unknown."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _moved_error(directory: str | os.PathLike) -> UserError:
    found = 'a different folder at this path' if os.path.isdir(directory) else 'no such folder any more'
    fix = 'move it back or give its new path, then the same command continues; if it was removed, start again'
    return UserError(str(directory), found, 'the folder that this command works in', fix)
