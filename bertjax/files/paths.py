"""Finding local files: by pattern, below a directory, or under one of several names; what kind of path one is."""

import contextlib
import errno
import fnmatch
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
_HOLE = 1 << 30  # Bytes.
_IN_BUCKET = re.compile(r'(gs|s3)://[^/]')


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path is a URL such as gs://…, and not in this machine's file system."""
    return '://' in os.fspath(path)


def check_address(path: str, where: str) -> None:
    """Raises UserError for an address that is neither gs://BUCKET… nor s3://BUCKET…"""
    if is_remote(path) and not _IN_BUCKET.match(path):
        fix = 'fetch it first, and give the path of the file'
        raise UserError(where, f'the address {path!r}', 'a path on this machine, gs://… or s3://…', fix)


_names: dict[str, str] = {}


def name_as(folder: pathlib.Path, address: str) -> None:
    """Says by which address the user knows a folder: it mirrors a bucket."""
    _names[os.fspath(folder)] = address


def user_name(path: pathlib.Path) -> str:
    """A path as the user calls it."""
    for folder in (path, *path.parents) if _names else ():
        if name := _names.get(os.fspath(folder)):
            return '/'.join([name, *path.relative_to(folder).parts])
    return os.fspath(path)


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


def unusual_kind(path: epath.PathLike) -> str:
    """'a pipe', 'a device' or 'a socket', where reading may never end; '' of files, folders and what is not there."""
    if is_remote(path):
        return ''
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # A zero byte in the name is a ValueError.
        return ''
    kinds = {stat.S_IFIFO: 'a pipe', stat.S_IFCHR: 'a device', stat.S_IFBLK: 'a device', stat.S_IFSOCK: 'a socket'}
    return kinds.get(stat.S_IFMT(mode), '')


def unwritten_bytes(path: epath.PathLike) -> int:
    """Bytes of a file that were never written and read as zeros, where they are over a GiB; else 0."""
    facts = None if is_remote(path) else os.stat(path)
    if facts is None or facts.st_size - 512 * facts.st_blocks < _HOLE or not hasattr(os, 'SEEK_HOLE'):
        return 0
    unwritten = at = 0
    with open(path, 'rb') as file:  # A file system that compresses has few blocks, too: ask for the holes themselves.
        while at < facts.st_size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # which says that no more data comes
                    return 0
                begin = facts.st_size
            unwritten += begin - at
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE) if begin < facts.st_size else begin
    return unwritten if unwritten >= _HOLE else 0


def walk_files(directory: epath.Path) -> Iterator[epath.Path]:
    """The files below a directory, sorted level by level; names that begin with '.' or '_' are left out.

    Links are followed. A folder that is reached once more, for example by a link to the folder that it lies in, is left
    out there, with a warning.

    Raises:
      UserError: a folder that cannot be listed.
    """
    seen, again = set(), []
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        if path != directory and not path.is_dir():
            yield path
            continue
        try:
            facts = None if is_remote(path) else os.stat(path)
            itself = (facts.st_dev, facts.st_ino) if facts else os.fspath(path)
            if itself in seen:
                again.append(path)
                continue
            seen.add(itself)
            inside = sorted(path.iterdir())
        except OSError as error:
            found, fix = (error.strerror or str(error)).lower(), 'check its permissions, or move it elsewhere'
            raise UserError(str(path), found, 'a folder that can be listed', fix) from None
        waiting += [child for child in reversed(inside) if not child.name.startswith(('.', '_'))]
    if again:
        logging.warning(
            'Folders reached by links a second time are left out there: %s%s',
            again[0], f' and {len(again) - 1:,} more' if again[1:] else '',
        )  # fmt: skip


def split_pattern(pattern: str) -> tuple[str, list[str]]:
    """The directory in which a pattern's wildcards begin, and the rest of it, name by name."""
    fixed = pattern[: _WILDCARD.search(pattern).start()].rpartition('/')[0]
    rest = pattern[len(fixed) :].lstrip('/')
    if '**' not in rest.split('/'):
        rest = re.sub(r'\*+', '*', rest)  # `a**b` is `a*b`; epath refuses it
    return fixed or ('/' if pattern.startswith('/') else '.'), rest.split('/')


def match_files(pattern: str) -> tuple[epath.Path, list[epath.Path]]:
    """The directory in which a pattern's wildcards begin, and the files that match it, sorted.

    `**` stands for any folders, or none: those of `walk_files`.
    """
    top, parts = split_pattern(pattern)
    root = epath.Path(top)
    if '**' not in parts:
        return root, sorted(path for path in root.glob('/'.join(parts)) if not path.is_dir())
    below = walk_files(root) if root.is_dir() else ()
    return root, sorted(path for path in below if _matches(path.relative_to(root).parts, parts))


def would_match(pattern: str, path: pathlib.Path) -> bool:
    """Whether `match_files` would find a local file of this path, which has no links, if it were there."""
    root, parts = split_pattern(pattern)
    top = os.path.realpath(root)
    names = path.relative_to(top).parts if path.is_relative_to(top) else ()
    return name_matches(names, parts)


def name_matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a pattern, part by part, finds a path below the place where it begins."""
    left_out = '**' in pattern and is_hidden(names)
    return not left_out and _matches(names, pattern)


def is_hidden(names: Sequence[str]) -> bool:
    """Whether a walk through folders leaves a path out."""
    return any(name.startswith(('.', '_')) for name in names)


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path, name by name, is of a pattern with `**`, which at its end stands for any file too."""
    if not names or not pattern:
        return not names and not pattern
    if pattern[0] == '**':
        return len(pattern) == 1 or any(_matches(names[i:], pattern[1:]) for i in range(len(names)))
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def existing_files(directory: epath.Path, names: Iterable[str]) -> Iterator[epath.Path]:
    """Those of the names that are files in the directory, in the order of `names`."""
    for name in names:
        path = directory / name
        if path.exists() and not path.is_dir():
            yield path


def at_most_one(found: Sequence[epath.Path], where: str, split: str, fix: str) -> epath.Path | None:
    """The only file found for a split; None where there is none.

    Raises:
      UserError: there are several.
    """
    if len(found) > 1:
        names = ' and '.join(path.name for path in found)
        raise UserError(where, names, f'one file of the {split} split', fix)
    return found[0] if found else None
