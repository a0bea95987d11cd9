"""Files that appear whole or not at all, and folders that one process at a time works in."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from absl import logging
from etils import epath

from bertjax.errors import UserError


def write_atomic(path: epath.PathLike, data: bytes | str) -> None:
    """Writes `data` (text as UTF-8) to `path` through a neighbouring temporary file, flushed to disk, then renamed."""
    path = epath.Path(path)
    data = data.encode('utf-8') if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f'.{path.name}.tmp-{os.getpid()}'
    with temporary.open('wb') as file:
        file.write(data)
        file.flush()
        if hasattr(file, 'fileno'):
            os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def exclusive(directory: str | os.PathLike, doing: str) -> Iterator[None]:
    """While entered, no other process can enter for the same local folder; the lock goes with the process.

    Args:
      directory: an existing local folder.
      doing: what the other process would be said to be doing, as in 'builds this store'.

    Raises:
      UserError: another process is at it.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found, mend = f'another process that {doing}', 'wait for it, or end it'
            raise UserError(str(directory), found, 'one process at a time', mend) from None
        except OSError:
            logging.warning('%s cannot be locked: start no second process there.', directory)
        yield
    finally:
        os.close(handle)
