"""From what a user writes in `config.corpus` to a sorted list of files and datasets."""

import dataclasses
import os
import re

from etils import epath

from bertjax.corpus import datasets
from bertjax.errors import UserError

_WHERE = 'config.corpus'
_WILD = re.compile(r'[*?\[]')


@dataclasses.dataclass(frozen=True)
class Source:
    """One file, or a range of one dataset.

    Attributes:
      kind: 'file', 'pydoc' or 'tfds'.
      path: how this machine reaches it.
      name: how reports name it: no absolute path, so that equal builds are equal.
      size: bytes of a file; records of a dataset.
      stamp: what tells that the content changed: a file's time in ns, a dataset's version.
      single: a file without a layout of its own is one document (it was found in a directory).
    """

    kind: str
    path: str
    name: str
    size: int
    stamp: str
    single: bool = False


def parse_mixture(spec: str) -> list[tuple[str, float | None]]:
    """Splits 'A=0.7,B=0.3' into [('A', 0.7), ('B', 0.3)], and 'A,B' into [('A,B', None)].

    A weighted component becomes a store of its own; components without weights make one store together.

    Raises:
      UserError: an empty component, some weighted and some not, or a weight that is not positive.
    """
    parts = [part.strip() for part in spec.split(',')]
    if not all(parts):
        mend = 'remove the empty part; a name that holds a comma cannot be given, use a glob such as "a?b.txt"'
        raise UserError(_WHERE, f'an empty component in {spec!r}', 'PATH, or PATH,PATH, or PATH=0.7,PATH=0.3', mend)
    weighted: list[tuple[str, float | None]] = []
    for part in parts:
        match = re.fullmatch(r'(.+)=([-+0-9.eE]+|nan|inf)', part)
        if not match or os.path.exists(part):
            weighted.append((part, None))
            continue
        try:
            weight = float(match[2])
        except ValueError:
            weight = -1.0
        if not 0 < weight < float('inf'):
            raise UserError(_WHERE, f'the weight {match[2]!r}', 'a number above 0', 'write for example PATH=0.7')
        weighted.append((match[1], weight))
    without = [part for part, weight in weighted if weight is None]
    if len(without) == len(weighted):
        return [(','.join(without), None)]
    if without:
        mend = f'give {without[0]!r} a weight too, or none to all'
        raise UserError(_WHERE, f'weights on some components of {spec!r}', 'weights on all or on none', mend)
    return weighted


def _stat(path: epath.Path, name: str, single: bool) -> Source:
    try:
        stat = path.stat()
    except OSError:  # For example a dangling link: the reader names it.
        return Source('file', os.fspath(path), name, 1, 'unreadable', single)
    # Remote time stamps have other units or none; their size speaks for them.
    stamp = str(os.stat(path).st_mtime_ns) if '://' not in str(path) else str(stat.mtime)
    return Source('file', os.fspath(path), name, stat.length, stamp, single)


def _walk(folder: epath.Path, top: str) -> list[Source]:
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(('.', '_')):
            continue
        name = f'{top}/{path.name}'
        found += _walk(path, name) if path.is_dir() else [_stat(path, name, single=True)]
    return found


def _glob(pattern: str) -> list[Source]:
    base, _, rest = pattern.rpartition('/') if not _WILD.search(pattern.rpartition('/')[0]) else ('', '', '')
    if not rest:
        fixed = pattern[: _WILD.search(pattern).start()].rpartition('/')[0]
        base, rest = fixed, pattern[len(fixed) :].lstrip('/')
    root = epath.Path(base or ('/' if pattern.startswith('/') else '.'))
    found = sorted(path for path in root.glob(rest) if not path.is_dir())
    return [_stat(path, os.fspath(path)[len(os.fspath(root)) :].lstrip('/'), single=False) for path in found]


def _resolve_one(spec: str, text_key: str) -> list[Source]:
    if spec.startswith('pydoc:'):
        size, stamp = datasets.pydoc_facts()
        return [Source('pydoc', 'pydoc:', 'pydoc:', size, stamp)]
    if spec.startswith('tfds:'):
        size, stamp = datasets.tfds_facts(spec, text_key)
        return [Source('tfds', spec, datasets.tfds_name(spec), size, stamp)]
    path = epath.Path(spec).expanduser()
    try:
        is_directory = path.is_dir()
    except ImportError as error:  # the file system of gs:// and the like is a package of its own
        raise UserError(
            _WHERE, f'{spec!r} ({error})', 'a path that can be read', 'pip install gcsfs for gs://'
        ) from None
    if is_directory:
        found = _walk(path, path.name or path.resolve().name)
        if not found:
            raise UserError(_WHERE, f'an empty directory {spec!r}', 'files of text', 'put files there or change it')
        return found
    if path.exists():
        return [_stat(path, path.name, single=False)]
    if _WILD.search(spec):
        found = _glob(os.fspath(path))
        if not found:
            raise UserError(_WHERE, f'no file for {spec!r}', 'a glob that matches files', f'check it with: ls {spec}')
        return found
    mend = 'check the path; a name that holds a comma cannot be given, use a glob such as "a?b.txt"'
    raise UserError(_WHERE, f'no such file {spec!r}', 'a file, directory, glob, pydoc: or tfds:NAME', mend)


def resolve(spec: str | list[str] | tuple[str, ...], text_key: str = 'text') -> list[Source]:
    """All sources of a specification, each part's in sorted order; see `CorpusOptions` for the formats.

    Raises:
      UserError: a part matches nothing, or cannot be read.
    """
    parts = [part for one in ([spec] if isinstance(spec, str) else spec) for part, _ in parse_mixture(one)]
    found = [source for part in ','.join(parts).split(',') for source in _resolve_one(part.strip(), text_key)]
    seen, unique = set(), []
    for source in found:
        if source.path not in seen:
            seen.add(source.path)
            unique.append(source)
    return unique
