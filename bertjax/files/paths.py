"""Where files are: local or remote, by pattern, below a directory, or under one of several names."""

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from bertjax.errors import UserError

_WILDCARD = re.compile(r'[*?\[]')


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path is a URL such as gs://…, and not in this machine's file system."""
    return '://' in os.fspath(path)


def is_pattern(path: str) -> bool:
    """Whether the path has wildcards."""
    return _WILDCARD.search(path) is not None


@contextlib.contextmanager
def without_wildcards(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """A local directory by a path without wildcards, for libraries that take every path for a pattern.

    It is its own path, or where that has some, a link to it in a temporary folder.
    """
    directory = directory.resolve()
    if not is_pattern(str(directory)):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix='bertjax-') as folder:
        link = pathlib.Path(folder, 'directory')
        link.symlink_to(directory, target_is_directory=True)
        yield link


def walk_files(directory: epath.Path) -> Iterator[epath.Path]:
    """The files below a directory, sorted level by level; names that begin with '.' or '_' are left out."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith(('.', '_')):
            continue
        if path.is_dir():
            yield from walk_files(path)
        else:
            yield path


def match_files(pattern: str) -> tuple[epath.Path, list[epath.Path]]:
    """The directory in which a pattern's wildcards begin, and the files that match it, sorted."""
    fixed = pattern[: _WILDCARD.search(pattern).start()].rpartition('/')[0]
    root = epath.Path(fixed or ('/' if pattern.startswith('/') else '.'))
    return root, sorted(path for path in root.glob(pattern[len(fixed) :].lstrip('/')) if not path.is_dir())


def existing_files(directory: epath.Path, names: Iterable[str]) -> Iterator[epath.Path]:
    """Those of the names that are files in the directory, in the order of `names`."""
    for name in names:
        path = directory / name
        if path.exists() and not path.is_dir():
            yield path


def at_most_one(found: Sequence[epath.Path], where: str, split: str, mend: str) -> epath.Path | None:
    """The only file found for a split; None where there is none.

    Raises:
      UserError: there are several.
    """
    if len(found) > 1:
        names = ' and '.join(path.name for path in found)
        raise UserError(where, names, f'one file of the {split} split', mend)
    return found[0] if found else None


def data_directory(data: str, expected: str, mend: str = 'check the path') -> epath.Path:
    """The directory that config.data names.

    Args:
      data: config.data.
      expected: what it should be, for the message: 'a folder with …'.
      mend: what to do when it is not.

    Raises:
      UserError: it is empty, or no such directory.
    """
    path = epath.Path(data).expanduser()
    if not data or not path.is_dir():
        raise UserError('config.data', repr(data), expected, mend)
    return path
