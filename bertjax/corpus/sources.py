"""From what a user writes in `config.corpus` to a sorted list of files and datasets, and how to read them."""

import dataclasses
import os
import re

from etils import epath

from bertjax.corpus import datasets
from bertjax.errors import UserError
from bertjax.files.paths import is_pattern, is_remote, match_files, unusual_kind, unwritten_bytes, user_path, walk_files
from bertjax.ranges import check_fields, number, one_of, ranged, text, whole
from bertjax.text.splitters import check_splitter

FORMATS = ('auto', 'text', 'files', 'jsonl', 'wikiextractor')
_WHERE = 'config.corpus'


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """How text is read and what the store keeps of it.

    Attributes:
      format: 'auto' looks at each file (WikiExtractor and JSON lines are recognised; else files named by path or glob
        are 'text' and files of a directory are 'files'); 'text' has blank lines between documents; 'files' has a
        document a file; 'jsonl' and 'wikiextractor' as the names say.
      text_key: the field of a JSON line, or the feature of a tfds dataset, that holds the text.
      strict: stop at the first broken input instead of dropping and counting the document.
      heldout: share of documents, by hash of their text, that training never sees.
      split_sentences: False when each line is a sentence already.
      sentences: what splits: 'rules', or 'pysbd', which takes a language too: 'pysbd:de' (see text/splitters.py).
      drop_duplicates: keep only the first of equal training documents (held-out ones are always kept once).
      workers: processes; 0 is one a core. It does not change the result.
    """

    format: str = ranged('auto', one_of(FORMATS))
    text_key: str = ranged('text', text(empty=False))
    strict: bool = False
    heldout: float = ranged(0.02, number(0, 1, below=True))
    split_sentences: bool = True
    sentences: str = 'rules'
    drop_duplicates: bool = False
    workers: int = ranged(0, whole(0, 4096))

    def __post_init__(self):
        check_fields(self, 'corpus_options')
        check_splitter(self.sentences)

    def settings(self) -> dict:
        """The options that determine the bytes of a store."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ('workers', 'strict')}


@dataclasses.dataclass(frozen=True)
class Source:
    """One file, or a split of one dataset.

    Attributes:
      kind: 'file', 'pydoc' or 'tfds'.
      path: how this machine reaches it.
      name: its name in reports, without an absolute path, so that equal builds are equal.
      size: bytes of a file; records of a dataset.
      stamp: tells whether the content changed: a file's modification time in ns, a dataset's version.
      single: a file whose format is not recognised is one document (it was found in a directory).
    """

    kind: str
    path: str
    name: str
    size: int
    stamp: str
    single: bool = False

    def format(self, chosen: str) -> str:
        """The format to read it in: `chosen`, or for 'auto' what `formats.sniff` falls back to."""
        return chosen if chosen != 'auto' else 'auto/files' if self.single else 'auto/text'


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a source: of its bytes (or records) [begin, end), the documents n with n % of == stride."""

    kind: str
    path: str
    name: str
    begin: int
    end: int
    of: int = 1
    stride: int = 0
    format: str = 'auto'


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


def _file(path: epath.Path, name: str, *, single: bool = False) -> Source:
    try:
        stat = path.stat()
    except OSError:  # For example a dangling link: reading reports it.
        return Source('file', os.fspath(path), name, 1, 'unreadable', single)
    # Modification times of remote files have other units or are missing; their size must do.
    stamp = str(stat.mtime) if is_remote(path) else str(os.stat(path).st_mtime_ns)
    return Source('file', os.fspath(path), name, stat.length, stamp, single)


def _resolve_one(spec: str, text_key: str) -> list[Source]:
    if spec.startswith('pydoc:'):
        size, stamp = datasets.pydoc_facts()
        return [Source('pydoc', 'pydoc:', 'pydoc:', size, stamp)]
    if spec.startswith('tfds:'):
        size, stamp = datasets.tfds_facts(spec, text_key)
        return [Source('tfds', spec, datasets.tfds_name(spec), size, stamp)]
    path = user_path(spec, _WHERE)
    if path.is_dir():
        top = path.name or path.resolve().name
        found = [_file(file, f'{top}/{file.relative_to(path).as_posix()}', single=True) for file in walk_files(path)]
        if not found:
            raise UserError(_WHERE, f'an empty directory {spec!r}', 'files of text', 'put files there or change it')
        return found
    if kind := unusual_kind(path):
        mend = 'write its text into a file first: a corpus is read more than once'
        raise UserError(_WHERE, f'{kind}, {spec!r}', 'a file', mend)
    if path.exists():
        return [_file(path, path.name)]
    if is_pattern(spec):
        root, files = match_files(os.fspath(path))
        if not files:
            raise UserError(_WHERE, f'no file for {spec!r}', 'a glob that matches files', f'check it with: ls {spec}')
        # In the working directory, '.', the name loses its first letter; finished stores hold their inputs' names so.
        return [_file(file, os.fspath(file)[len(os.fspath(root)) :].lstrip('/')) for file in files]
    mend = 'check the path; a name that holds a comma cannot be given, use a glob such as "a?b.txt"'
    raise UserError(_WHERE, f'no such file {spec!r}', 'a file, directory, glob, pydoc: or tfds:NAME', mend)


def resolve(spec: str | list[str] | tuple[str, ...], text_key: str = 'text') -> list[Source]:
    """All sources of a specification, each component's in sorted order.

    Raises:
      UserError: a component matches nothing, or cannot be read.
    """
    parts = [part for one in ([spec] if isinstance(spec, str) else spec) for part, _ in parse_mixture(one)]
    found = [source for part in ','.join(parts).split(',') for source in _resolve_one(part.strip(), text_key)]
    unique: dict[str, Source] = {}
    for source in found:
        unique.setdefault(source.path, source)
    for source in unique.values():
        if source.kind == 'file':
            _refuse_holes(source)
    return list(unique.values())


def _refuse_holes(source: Source) -> None:
    """Refuses a file that is mostly zeros which nobody wrote: it would be read for hours, and is no text."""
    try:
        unwritten = unwritten_bytes(source.path)
    except OSError:  # Reading reports it.
        return
    if unwritten:
        found = f'a sparse file, {unwritten:,} of whose {source.size:,} bytes were never written'
        raise UserError(source.path, found, 'text', 'copy it again, or take it away')
