"""From what a user writes in `config.corpus` to a sorted list of files and datasets, and how to read them."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from etils import epath

from bertjax.corpus import datasets, sequences
from bertjax.errors import UserError
from bertjax.files.disk import raise_passing
from bertjax.files.paths import (
    check_address,
    is_pattern,
    is_remote,
    match_files,
    unusual_kind,
    unwritten_bytes,
    walk_files,
)
from bertjax.ranges import check_fields, number, one_of, ranged, text, whole
from bertjax.remote.paths import find_objects, user_path
from bertjax.text.splitters import check_splitter

FORMATS = ('auto', 'text', 'files', 'jsonl', 'wikiextractor', *sequences.FORMATS)
UNREADABLE = 'unreadable'  # the stamp of a file that cannot be looked at
AUTO = 'auto'  # in place of a weight: by size
_WHERE = 'config.corpus'
_HEAVIEST = 1e30  # weight of a component: the sum of several must stay a number
_OF_NO_STORE = ('workers', 'strict', 'smoothing')  # options that do not change the bytes of a store


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """How text is read and what the store keeps of it.

    Attributes:
      format: 'auto' looks at the content (WikiExtractor and JSON lines are recognised file by file; the others are read
        as `reading.choose` decides for all of them); 'text' has blank lines between documents; 'files' has a document
        a file; 'jsonl' and 'wikiextractor' as the names say; 'ids' and 'symbols' are JSON lines of sequences that are
        not text (see `sequences`).
      text_key: the field of a JSON line, or the feature of a tfds dataset, that holds the text.
      segments: of sequences, how many segment types their field `segments` has; 0: they have none.
      strict: stop at the first broken input instead of dropping and counting the document.
      heldout: share of documents, by hash of their text, that training never sees.
      split_sentences: False when each line is a sentence already.
      sentences: what splits: 'rules', or 'pysbd', which takes a language too: 'pysbd:de' (see text/splitters.py).
      drop_duplicates: keep only the first of equal training documents (held-out ones are always kept once).
      smoothing: of a mixture whose weights are `=auto`: a corpus of n tokens has a share in proportion to n^smoothing;
        1 is by size, 0 the same for all. It does not change a store.
      workers: processes; 0 is one a core. It does not change the result.
    """

    format: str = ranged('auto', one_of(FORMATS))
    text_key: str = ranged('text', text(empty=False))
    segments: int = ranged(0, whole(0, sequences.MOST_SEGMENTS))
    strict: bool = False
    heldout: float = ranged(0.02, number(0, 1, below=True))
    split_sentences: bool = True
    sentences: str = 'rules'
    drop_duplicates: bool = False
    smoothing: float = ranged(0.7, number(0, 1))
    workers: int = ranged(0, whole(0, 4096))

    def __post_init__(self):
        check_fields(self, 'corpus_options')
        check_splitter(self.sentences)
        if self.segments and self.format not in sequences.FORMATS:
            expected = f'0 with config.corpus_options.format={self.format}, or one of {", ".join(sequences.FORMATS)}'
            fix = 'leave it out: the segments of text are A and B'
            raise UserError('config.corpus_options.segments', str(self.segments), expected, fix)

    def settings(self) -> dict:
        """The options that determine the bytes of a store."""
        settings = {name: value for name, value in dataclasses.asdict(self).items() if name not in _OF_NO_STORE}
        if not self.segments:
            del settings['segments']  # as before there were any
        return settings


@dataclasses.dataclass(frozen=True)
class TextSource:
    """One file, or a split of one dataset.

    Attributes:
      kind: 'file', 'pydoc' or 'tfds'.
      path: how this machine reaches it.
      name: its name in reports, without an absolute path, so that equal builds are equal.
      size: bytes of a file; records of a dataset.
      stamp: tells whether the content may have changed: a file's modification time in ns, a dataset's version.
      single: a file whose format is not recognised is one document. As `resolve` gives it, it was found in a directory,
        by which the first versions decided; `reading.choose` decides by content.
      inode: of a local file.
      component: the directory or glob that it was found by; '' of one that was named.
      old_name: its name in stores of the first versions.
    """

    kind: str
    path: str
    name: str
    size: int
    stamp: str
    single: bool = False
    inode: int = 0
    component: str = ''
    old_name: str = ''

    def format(self, chosen: str) -> str:
        """The format to read it in: `chosen`, or for 'auto' what `formats.sniff` falls back to."""
        return chosen if chosen != 'auto' else 'auto/files' if self.single else 'auto/text'


@dataclasses.dataclass(frozen=True)
class TextPart:
    """A part of a source: of its bytes (or records) [begin, end), the documents n with n % of == stride."""

    kind: str
    path: str
    name: str
    begin: int
    end: int
    of: int = 1
    stride: int = 0
    format: str = 'auto'


def parse_mixture(spec: str) -> list[tuple[str, float | str | None]]:
    """Splits 'A=0.7,B=0.3' into [('A', 0.7), ('B', 0.3)], and 'A,B' into [('A,B', None)]; =auto gives the weight AUTO.

    A weighted component becomes a store of its own; components without weights make one store together.

    Raises:
      UserError: an empty component, some weighted and some not, a weight that is not positive, or numbers beside AUTO.
    """
    parts = [part.strip() for part in spec.split(',')]
    if not all(parts):
        fix = 'remove the empty part; a name that holds a comma cannot be given, use a glob such as "a?b.txt"'
        raise UserError(_WHERE, f'an empty component in {spec!r}', 'PATH, or PATH,PATH, or PATH=0.7,PATH=0.3', fix)
    weighted: list[tuple[str, float | str | None]] = []
    for part in parts:
        match = re.fullmatch(r'(.+)=([-+0-9.eE]+|nan|inf|auto)', part)
        if not match or os.path.exists(part):
            weighted.append((part, None))
            continue
        if match[2] == AUTO:
            weighted.append((match[1], AUTO))
            continue
        try:
            weight = float(match[2])
        except ValueError:
            weight = -1.0
        if not 0 < weight <= _HEAVIEST:
            expected = f'a number above 0, to {_HEAVIEST:g}'
            raise UserError(_WHERE, f'the weight {match[2][:40]!r}', expected, 'write for example PATH=0.7')
        weighted.append((match[1], weight))
    without = [part for part, weight in weighted if weight is None]
    if len(without) == len(weighted):
        return [(','.join(without), None)]
    if without:
        fix = f'give {without[0]!r} a weight too, or none to all'
        raise UserError(_WHERE, f'weights on some components of {spec!r}', 'weights on all or on none', fix)
    if len({weight == AUTO for _, weight in weighted}) > 1:
        fix = 'give each its number, or =auto to all'
        raise UserError(_WHERE, f'numbers beside =auto in {spec!r}', 'one of the two for all components', fix)
    return weighted


def unweighted(spec: str | Sequence[str]) -> list[str]:
    """What is given for one store, as a list.

    Raises:
      UserError: weights, which are of several stores.
    """
    specs = [spec] if isinstance(spec, str) else list(spec)
    for one in specs:
        if any(weight is not None for _, weight in parse_mixture(one)):
            raise UserError(_WHERE, f'the weights of {one!r}', 'one component a store', 'build each by itself')
    return specs


def components(spec: str | Sequence[str]) -> list[str]:
    """The paths, globs and datasets of a specification, or of several, without weights."""
    joined = [part for one in ([spec] if isinstance(spec, str) else spec) for part, _ in parse_mixture(one)]
    return [part.strip() for part in ','.join(joined).split(',')]


def _file(path: epath.Path, name: str, **found: Any) -> TextSource:
    found = {'old_name': name, **found}
    try:
        stat = os.stat(path)
    except OSError as error:  # For example a dangling link: reading reports it.
        raise_passing(error, path)
        return TextSource('file', os.fspath(path), name, 1, UNREADABLE, **found)
    return TextSource('file', os.fspath(path), name, stat.st_size, str(stat.st_mtime_ns), inode=stat.st_ino, **found)


def _resolve_one(spec: str, text_key: str) -> list[TextSource]:
    if spec.startswith('pydoc:'):
        size, stamp = datasets.pydoc_facts()
        return [TextSource('pydoc', 'pydoc:', 'pydoc:', size, stamp, old_name='pydoc:')]
    if spec.startswith('tfds:'):
        size, stamp = datasets.tfds_facts(spec, text_key)
        name = datasets.tfds_name(spec)
        return [TextSource('tfds', spec, name, size, stamp, old_name=name)]
    if is_remote(spec):
        check_address(spec, _WHERE)
        found, kind = find_objects(spec, _WHERE)
        facts = {'component': '' if kind == 'object' else spec, 'single': kind == 'folder'}
        return [TextSource('file', url, name, o.size, o.version, old_name=name, **facts) for url, name, o in found]
    path = user_path(spec, _WHERE)
    if path.is_dir():
        top = path.name or path.resolve().name
        found = [
            _file(file, f'{top}/{file.relative_to(path).as_posix()}', single=True, component=spec)
            for file in walk_files(path)
        ]
        if not found:
            raise UserError(_WHERE, f'an empty directory {spec!r}', 'files of text', 'put files there or change it')
        return found
    if kind := unusual_kind(path):
        fix = 'write its text into a file first: a corpus is read more than once'
        raise UserError(_WHERE, f'{kind}, {spec!r}', 'a file', fix)
    if path.exists():
        return [_file(path, path.name)]
    if is_pattern(spec):
        root, files = match_files(os.fspath(path))
        if not files:
            raise UserError(_WHERE, f'no file for {spec!r}', 'a glob that matches files', f'check it with: ls {spec}')
        return [
            _file(file, name, component=spec, old_name=_old_name(name, root))
            for file in files
            for name in [file.relative_to(root).as_posix()]
        ]
    fix = 'check the path; a name that holds a comma cannot be given, use a glob such as "a?b.txt"'
    raise UserError(_WHERE, f'no such file {spec!r}', 'a file, directory, glob, pydoc: or tfds:NAME', fix)


def _old_name(name: str, root: epath.Path) -> str:
    """Where a glob began in the working directory, names lost their first letter in the first versions."""
    return name[1:].lstrip('/') if os.fspath(root) == '.' else name


def resolve(spec: str | Sequence[str], text_key: str = 'text') -> list[TextSource]:
    """All sources of a specification, each component's in sorted order.

    Raises:
      UserError: a component matches nothing, or cannot be read.
    """
    found = [source for part in components(spec) for source in _resolve_one(part, text_key)]
    unique: dict[str, TextSource] = {}
    for source in found:
        unique.setdefault(source.path, source)
    for source in unique.values():
        if source.kind == 'file':
            _refuse_holes(source)
    return list(unique.values())


def _refuse_holes(source: TextSource) -> None:
    """Refuses a file that is mostly zeros which nobody wrote: it would be read for hours, and is no text."""
    try:
        unwritten = unwritten_bytes(source.path)
    except OSError:  # Reading reports it.
        return
    if unwritten:
        found = f'a sparse file, {unwritten:,} of whose {source.size:,} bytes were never written'
        raise UserError(source.path, found, 'text', 'copy it again, or take it away')
