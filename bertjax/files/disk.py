"""Reports errors of the operating system, such as a full disk or too many open files, in one line."""

import contextlib
import errno
import os
import pathlib
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator

from bertjax.errors import UserError

OPEN_FILES = 128  # bertjax refuses to run if fewer open files are allowed
_MAX_OPEN_FILES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
# {errno: fix} for the errors that have no separate case in `_explain`.
_FIXES = {
    errno.EROFS: 'give a --workdir on a disk that can be written to',
    errno.EACCES: 'change its permissions, or give another path',
    errno.EPERM: 'change its permissions, or give another path',
    errno.EIO: 'check the disk; files saved earlier are complete, and the same command continues from them',
    **dict.fromkeys(
        (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN),
        'check that its disk is mounted; the same command continues',
    ),
    errno.ENOTDIR: 'move the file that is in its way, or give another path',
    errno.EEXIST: 'move the file that is in its way, or give another path',
    errno.EISDIR: 'move the folder that is in its way, or give another path',
    errno.ENAMETOOLONG: 'give a shorter path',
    errno.ELOOP: 'fix the links, or give another path',
    errno.ENFILE: 'close other programs, or raise fs.file-max; the same command continues',
}
# Read errors that concern one file. All other read errors concern the machine.
_FILE_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
_NO_TEMPORARY = 'No usable temporary directory'  # in Python's message
# Matches the error number in a message of tensorstore or safetensors.
_NATIVE = re.compile(r"os_error_code='(\d+)'|\(os error (\d+)\)")


@contextlib.contextmanager
def annotate_write_errors(path: str | os.PathLike, size: int) -> Iterator[None]:
    """Adds `size` (bytes) as `write_size` to an OSError of the block, and `path` as `filename` if it has none.

    An error of tensorstore or safetensors that contains an error number is raised as an OSError.
    """
    try:
        yield
    except Exception as error:  # tensorstore and safetensors raise their own types
        os_error = _find_os_error(error)
        if os_error is None:
            raise
        is_missing = os_error is error and error.errno == errno.ENOENT
        if is_missing and pathlib.Path(os.fsdecode(error.filename or path)).absolute().parent.is_dir():
            raise  # its folder exists, so the missing file is a bug of the program
        os_error.filename, os_error.write_size = os_error.filename or os.fspath(path), size
        if os_error is error:
            raise
        raise os_error from error


def reraise_machine_errors(error: Exception, path: str | os.PathLike) -> None:
    """Raises a read error again, with the path, if it concerns the machine and not this file.

    After any other read error, the callers skip the rest of the file. After an error of the machine, such as an
    unmounted disk, they must stop, because otherwise text would be missing from the result.
    """
    if isinstance(error, OSError) and error.errno is not None and error.errno not in _FILE_ERRORS:
        error.filename = error.filename or os.fspath(path)
        raise error


def _find_os_error(error: BaseException) -> OSError | None:
    if isinstance(error, OSError):
        return error if error.errno is not None else None  # an error of the system always has a number
    native = _NATIVE.search(str(error))
    if native is None:
        return None
    code = int(native[1] or native[2])
    return OSError(code, os.strerror(code))


def explain_os_error(error: BaseException, workdir: str) -> UserError | None:
    """Returns a UserError if an operating system error with a known fix caused the exception, else None.

    The UserError names the path of the error, or `workdir` if the error has no path.
    """
    while error is not None:
        os_error = _find_os_error(error)
        if os_error is not None:
            return _explain(os_error, workdir)
        error = error.__cause__
    return None


def _explain(error: OSError, workdir: str) -> UserError | None:
    path = pathlib.Path(os.fsdecode(error.filename or workdir)).absolute()
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _too_few_files(f'more open files than the {limit} allowed', 4 * limit)
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        limiter, fix = f'limit (ulimit -f) of {limit:,} bytes', 'run this first: ulimit -f unlimited'
        if limit == resource.RLIM_INFINITY:
            limiter, fix = 'file system', 'move the folder to another file system'
        fix += '; then the same command continues'
        return UserError(str(path), f'a {limiter} that allows no larger file', 'room for larger files', fix)
    if error.errno == errno.ENOENT and hasattr(error, 'write_size'):
        fix = 'put the folder back if it was moved; the same command continues with the existing files'
        return UserError(str(path), 'that its folder was moved or removed', 'a folder that stays while it is used', fix)
    if error.errno == errno.ENOENT and _NO_TEMPORARY in str(error):
        fix = 'make room there, or set TMPDIR to another folder; then the same command continues'
        return UserError('TMPDIR', 'no folder for temporary files', 'a folder that can be written to', fix)
    if error.errno in _FULL:
        folder = nearest_folder(path)
        free = shutil.disk_usage(folder).free
        found = 'a used-up disk quota' if error.errno == errno.EDQUOT else f'a full disk with {free:,} bytes free'
        size = getattr(error, 'write_size', 0)
        expected = f'{size:,} bytes for {path}' if size else f'room for {path}'
        return UserError(str(folder), found, expected, 'make room, then start the same command again: it continues')
    if error.errno in _FIXES:
        return UserError(str(path), error.strerror.lower(), 'a path that can be read and written', _FIXES[error.errno])
    return None


def check_writable(folder: pathlib.Path) -> None:
    """Creates and removes a temporary file in a folder.

    Raises:
      UserError: The folder cannot be written to.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename = os.fspath(folder)  # not the temporary file
        raise explain_os_error(error, '') or error from None


def nearest_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the path if it is a folder, else its nearest existing parent."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def check_open_files() -> None:
    """Increases the soft limit of open files to the hard limit, or to _MAX_OPEN_FILES if that is lower.

    Each memory-mapped shard of a token store keeps a file open.

    Raises:
      UserError: The limit is below OPEN_FILES.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        for limit in (allowed, max(soft, min(allowed, 10_240))):  # macOS refuses more
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                soft = limit
                break
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        raise _too_few_files(f'{soft} open files allowed', 1024)


def _too_few_files(found: str, limit: int) -> UserError:
    return UserError('ulimit -n', found, 'a higher limit', f'run this first, as root if refused: ulimit -n {limit}')
