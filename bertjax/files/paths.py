"""Finds files by name, by pattern or below a directory, and classifies paths."""

import contextlib
import fnmatch
import glob
import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from absl import logging
from etils import epath

from bertjax.errors import UserError

_WILDCARD = re.compile(r'[*?\[]')
# A pattern of the names of hidden files that macOS, Jupyter and NFS make beside the files of a user.
SYSTEM_FILES = r'\.DS_Store|\._.*|\.ipynb_checkpoints|\.nfs[0-9a-f]+'
_IN_BUCKET = re.compile(r'(gs|s3)://[^/]')


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether the path is a URL such as gs://… instead of a path in the file system of this machine."""
    return '://' in os.fspath(path)


def check_address(path: str, where: str) -> None:
    """Raises a UserError for a URL other than gs://BUCKET… and s3://BUCKET…"""
    if is_remote(path) and not _IN_BUCKET.match(path):
        expected, fix = 'a path on this machine, gs://… or s3://…', 'download it first, and give the path of the file'
        raise UserError(where, f'the address {path!r}', expected, fix)


_names: dict[str, str] = {}


def register_address(folder: pathlib.Path, address: str) -> None:
    """Registers the bucket address that a local folder mirrors, for `display_path` and `display_text`."""
    _names[os.fspath(folder)] = address


def display_path(path: pathlib.Path) -> str:
    """Returns the path as text for the user: the bucket address if the path is in the mirror of a bucket."""
    for folder in (path, *path.parents) if _names else ():
        if name := _names.get(os.fspath(folder)):
            return '/'.join([name, *path.relative_to(folder).parts])
    return os.fspath(path)


def display_text(text: str) -> str:
    """Returns a text for the user with the bucket address in place of each path in the mirror of a bucket."""
    for folder, address in _names.items():
        text = re.sub(re.escape(folder) + r'(?![.-]?\w)', lambda _, address=address: address, text)
    return text


def real_path(path: str) -> str:
    """Returns the real path, or the path without a final `/` if it does not exist on this machine; for comparisons."""
    local = os.path.expanduser(path)
    return os.path.realpath(local) if os.path.exists(local) else path.rstrip('/')


def is_pattern(path: str) -> bool:
    """Returns whether the path has wildcards."""
    return _WILDCARD.search(path) is not None


@contextlib.contextmanager
def without_wildcards(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path without wildcards to a local directory, for libraries that treat every path as a pattern.

    If the directory has wildcards in its path, the yielded path is a symbolic link in a temporary folder.
    """
    directory = directory.resolve()
    if not is_pattern(str(directory)):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix='bertjax-') as folder:
        link = pathlib.Path(folder, 'directory')
        link.symlink_to(directory, target_is_directory=True)
        yield link


def unusual_kind(path: epath.PathLike) -> str:
    """Returns 'a pipe', 'a device' or 'a socket' for a path whose data may never end, otherwise ''."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # a zero byte in the name causes a ValueError
        return ''
    kinds = {stat.S_IFIFO: 'a pipe', stat.S_IFCHR: 'a device', stat.S_IFBLK: 'a device', stat.S_IFSOCK: 'a socket'}
    return kinds.get(stat.S_IFMT(mode), '')


def walk_files(directory: epath.Path) -> Iterator[epath.Path]:
    """Yields the files below a directory, sorted within each folder. Names that begin with '.' or '_' are skipped.

    Links are followed. A folder that is reached a second time, for example through a link to its parent, is skipped
    with a warning.

    Raises:
      UserError: A folder cannot be listed.
    """
    seen, stack = set(), [directory]
    while stack:
        path = stack.pop()
        if path != directory and not path.is_dir():
            yield path
            continue
        try:
            facts = os.stat(path)
            if (facts.st_dev, facts.st_ino) in seen:
                logging.warning('Skipped %s, which a link reaches a second time.', path)
                continue
            seen.add((facts.st_dev, facts.st_ino))
            children = sorted(path.iterdir())
        except OSError as error:
            found, fix = (error.strerror or str(error)).lower(), 'check its permissions, or move it elsewhere'
            raise UserError(str(path), found, 'a folder that can be listed', fix) from None
        stack += [child for child in reversed(children) if not child.name.startswith(('.', '_'))]


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """Splits a pattern into the directory before its first wildcard and a list of the remaining path components."""
    fixed = pattern[: _WILDCARD.search(pattern).start()].rpartition('/')[0]
    return fixed or ('/' if pattern.startswith('/') else '.'), pattern[len(fixed) :].lstrip('/').split('/')


def match_files(pattern: str) -> tuple[epath.Path, list[epath.Path]]:
    """Returns the directory before a pattern's first wildcard, and the sorted files that match the pattern.

    `**` matches zero or more nested folders that `walk_files` visits.
    """
    top, parts = split_pattern(pattern)
    root = epath.Path(top)
    if '**' not in parts:
        paths = map(epath.Path, glob.glob(os.path.join(top, *parts)))
        return root, sorted(path for path in paths if not path.is_dir())
    below = walk_files(root) if root.is_dir() else ()
    return root, sorted(path for path in below if name_matches(path.relative_to(root).parts, parts))


def would_match(pattern: str, path: pathlib.Path) -> bool:
    """Returns whether `match_files` would return a file at this local path. The path must contain no links."""
    root, parts = split_pattern(pattern)
    top = os.path.realpath(root)
    return path.is_relative_to(top) and name_matches(path.relative_to(top).parts, parts)


def is_hidden(names: Sequence[str]) -> bool:
    """Returns whether `walk_files` skips a path with these components."""
    return any(name.startswith(('.', '_')) for name in names)


def name_matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether `match_files` would return the path with the components `names`.

    Both arguments are lists of components below the directory that `split_pattern` returns. A final `**` matches every
    file. As in a shell, a name that begins with '.' matches only a pattern that begins with '.'.
    """
    if not names or not pattern:
        return not names and not pattern
    if '**' in pattern and is_hidden(names):
        return False
    if pattern[0] == '**':
        return len(pattern) == 1 or any(name_matches(names[i:], pattern[1:]) for i in range(len(names)))
    hidden = names[0].startswith('.') and not pattern[0].startswith('.')
    return not hidden and fnmatch.fnmatchcase(names[0], pattern[0]) and name_matches(names[1:], pattern[1:])


def existing_files(directory: epath.Path, names: Iterable[str]) -> Iterator[epath.Path]:
    """Yields the path of each name that is a file in the directory, in the order of `names`."""
    for name in names:
        path = directory / name
        if path.exists() and not path.is_dir():
            yield path
