"""What the system refuses (a full disk, a read-only one, files too large or too many), said to the user in one line."""

import contextlib
import errno
import os
import pathlib
import re
import resource
import shutil
from collections.abc import Iterator

from bertjax.errors import UserError

OPEN_FILES = 128
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What else the user can fix, and how.
_FIXES = {
    errno.EROFS: 'give a --workdir on a disk that can be written to',
    errno.EACCES: 'change its permissions, or give another path',
    errno.EPERM: 'change its permissions, or give another path',
    errno.EIO: 'check the disk; what was saved before is whole, and the same command continues there',
    errno.ESTALE: 'check that its disk is mounted; the same command continues',
    errno.ENOTDIR: 'move the file that is in its way, or give another path',
    errno.EEXIST: 'move the file that is in its way, or give another path',
    errno.EISDIR: 'move the folder that is in its way, or give another path',
    errno.ENAMETOOLONG: 'give a shorter path',
    errno.ELOOP: 'fix the links, or give another path',
}
# What is wrong with a file to read; other errors tell of the machine.
_OF_THE_FILE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
_NO_TEMPORARY = 'No usable temporary directory'  # in Python's words
# In the text of errors: of tensorstore, of safetensors.
_NATIVE = re.compile(r"os_error_code='(\d+)'|\(os error (\d+)\)")


@contextlib.contextmanager
def writing(path: str | os.PathLike, size: int) -> Iterator[None]:
    """Makes what the system refuses in the body an OSError that knows the path, and as `wanted` the size in bytes."""
    try:
        yield
    except Exception as error:  # tensorstore and safetensors have their own
        refused = _refusal(error)
        if refused is None or (refused is error and _is_fault_of_ours(refused, path)):
            raise
        if refused is not error:
            raise _about(refused, path, size) from error
        _about(refused, path, size)
        raise


def raise_passing(error: Exception, path: str | os.PathLike) -> None:
    """Raises an error of reading again, with the path, where it tells of the machine and not of the file.

    For want of file handles, or while a disk is away, a text would silently be shorter than it is. A bad sector counts
    among these errors: it is better named than passed over. `refused` explains them.
    """
    if isinstance(error, OSError) and error.errno is not None and error.errno not in _OF_THE_FILE:
        error.filename = error.filename or os.fspath(path)
        raise error


def _is_fault_of_ours(error: OSError, path: str | os.PathLike) -> bool:
    """Whether a missing file says nothing of the system: the folder that it should lie in is there."""
    return error.errno == errno.ENOENT and pathlib.Path(os.fsdecode(error.filename or path)).absolute().parent.is_dir()


def _about(error: OSError, path: str | os.PathLike, size: int) -> OSError:
    error.filename = error.filename or os.fspath(path)
    error.wanted = size
    return error


def _refusal(error: BaseException) -> OSError | None:
    if isinstance(error, OSError):
        return error if error.errno is not None else None  # else it is no system's
    native = _NATIVE.search(str(error))
    if native is None:
        return None
    code = int(native[1] or native[2])
    return OSError(code, os.strerror(code))


def refused(error: BaseException, workdir: str) -> UserError | None:
    """What the user is told of an exception that the system is the cause of; None for any other."""
    while error is not None:
        found = _refusal(error)
        if found is not None:
            return _explained(found, workdir)
        error = error.__cause__
    return None


def _explained(error: OSError, workdir: str) -> UserError | None:
    path = pathlib.Path(os.fsdecode(error.filename or workdir)).absolute()
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_few(f'more open files than the {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} allowed')
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        what = 'file system' if limit == resource.RLIM_INFINITY else f'limit (ulimit -f) of {limit:,} bytes'
        fix = 'run this first: ulimit -f unlimited; then the same command continues'
        return UserError(str(path), f'a {what} that allows no larger file', 'room for larger files', fix)
    if error.errno == errno.ENOENT and hasattr(error, 'wanted'):
        fix = 'put it back if it was moved, then start the same command again: it continues with what is there'
        return UserError(str(path), 'that its folder was moved or removed', 'one that stays while it is used', fix)
    if error.errno == errno.ENOENT and _NO_TEMPORARY in str(error):
        fix = 'make room there, or set TMPDIR to another folder; then the same command continues'
        return UserError('TMPDIR', 'no folder for temporary files', 'one that can be written to', fix)
    if error.errno in _FULL:
        folder = next(place for place in (path, *path.parents) if place.is_dir())
        found = f'a full disk with {shutil.disk_usage(folder).free:,} bytes free'
        wanted = getattr(error, 'wanted', 0)
        expected = f'{wanted:,} bytes for {path}' if wanted else f'room for {path}'
        return UserError(str(folder), found, expected, 'make room, then start the same command again: it continues')
    if error.errno in _FIXES:
        expected = 'a path that can be read and written'
        return UserError(str(path), error.strerror.lower(), expected, _FIXES[error.errno])
    return None


def check_open_files() -> None:
    """Lets this process open as many files as it may have, up to 1,024.

    Raises:
      UserError: it may have too few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = 1024 if hard == resource.RLIM_INFINITY else min(hard, 1024)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        raise _too_few(f'{soft} open files allowed')


def _too_few(found: str) -> UserError:
    return UserError('ulimit -n', found, f'at least {OPEN_FILES}', 'run this first: ulimit -n 1024')
