"""Resolves `config.corpus` to a list of files and datasets, and defines the options for reading them."""

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from bertjax.config.ranges import integer, number, one_of, text
from bertjax.config.schema import Change, check_fields, key
from bertjax.corpus import datasets, sequences
from bertjax.errors import UserError
from bertjax.files.disk import reraise_machine_errors
from bertjax.files.paths import (
    check_address,
    is_pattern,
    is_remote,
    match_files,
    unusual_kind,
    walk_files,
)
from bertjax.files.streams import bare_suffix
from bertjax.remote.paths import find_objects, user_path
from bertjax.text.splitters import check_splitter

FORMATS = ('auto', 'text', 'files', 'jsonl', 'wikiextractor', *sequences.FORMATS)
UNREADABLE = 'unreadable'  # the stamp of a file whose status cannot be read
AUTO = 'auto'  # the value of a weight that is computed from the component's size
_WHERE = 'config.corpus'
# Tables, archives and documents of office programs, whose lines are not text.
_NON_TEXT_SUFFIXES = ('.csv', '.tsv', '.xlsx', '.parquet', '.arrow', '.feather', '.tfrecord', '.pdf', '.docx')
_NON_TEXT_SUFFIXES += ('.zip', '.tar', '.tgz', '.tbz2', '.txz', '.7z')
_NON_STORE_OPTIONS = ('workers', 'strict', 'smoothing')  # options that do not change the bytes of a store


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """The options for reading text and building a store.

    Attributes:
      format: The format of the files. 'text' has blank lines between documents; 'files' has one document in each file.
        'ids' and 'symbols' are JSON lines of sequences that are not text (see `sequences`). 'auto' recognizes
        WikiExtractor and JSON lines in each file, and chooses 'text' or 'files' for all other files of a component.
      text_key: The JSON field or tfds feature that contains the text or the sequences.
      segments: The number of segment types in the field `segments` of sequences; 0 ignores the field.
      strict: Whether to stop at the first broken input, instead of dropping and counting the document.
      heldout: The share of documents that training never sees, chosen by the hash of their text.
      split_sentences: Whether to split text into sentences; False if each line is a sentence.
      sentences: The splitter: 'rules', or 'pysbd' with an optional language, such as 'pysbd:de' (text/splitters.py).
      drop_duplicates: Whether to drop copies of earlier training documents, ignoring case and white space. This is
        always done for held-out documents.
      smoothing: The exponent of `=auto` weights, for examples and for a WordPiece or SentencePiece vocabulary. The
        share of a corpus of size n is proportional to n^smoothing: 1 gives shares by size, 0 gives equal shares.
      workers: The number of processes; 0 uses up to one for each core. It does not change the result.
    """

    format: str = key('auto', one_of(FORMATS))
    text_key: str = key('text', text(empty=False))
    segments: int = key(0, integer(0, sequences.MAX_SEGMENTS))
    strict: bool = False
    heldout: float = key(0.02, number(0, 1, below=True))
    split_sentences: bool = True
    sentences: str = 'rules'
    drop_duplicates: bool = False
    smoothing: float = key(0.7, number(0, 1))
    workers: int = key(0, integer(0, 4096), change=Change.VERB)

    def __post_init__(self):
        check_fields(self, 'corpus_options')
        check_splitter(self.sentences)
        if self.segments and self.format not in sequences.FORMATS:
            expected = f'0 with config.corpus_options.format={self.format}, or format {" or ".join(sequences.FORMATS)}'
            fix = 'remove it: the segments of text are A and B'
            raise UserError('config.corpus_options.segments', str(self.segments), expected, fix)

    def settings(self) -> dict:
        """Returns the options that determine the bytes of a store."""
        settings = {name: value for name, value in dataclasses.asdict(self).items() if name not in _NON_STORE_OPTIONS}
        if not self.segments:
            del settings['segments']  # stores without segments have no such key
        return settings


@dataclasses.dataclass(frozen=True)
class TextSource:
    """One file, or a split of one dataset.

    Attributes:
      kind: 'file', 'pydoc' or 'tfds'.
      path: The path or specification for reading the source on this machine.
      name: The name in reports. It has no absolute path, so that builds on different machines are equal.
      size: The number of bytes of a file, or of records of a dataset.
      stamp: A value that changes if the content may have changed: a file's modification time in ns, or the version of
        an object or dataset.
      single: Whether 'auto' reads a file of no recognized format as one document. `resolve_sources` sets
        True for files of directories. `reading.choose_readings` can replace it with a value based on the content.
      inode: The inode of a local file; otherwise 0.
      component: The directory or glob that matched the file; '' if the corpus names the file itself.
    """

    kind: str
    path: str
    name: str
    size: int
    stamp: str
    single: bool = False
    inode: int = 0
    component: str = ''

    @property
    def facts(self) -> tuple[int, str, int]:
        """The size, stamp and inode. If they are unchanged, the content is assumed to be unchanged."""
        return self.size, self.stamp, self.inode

    def whole(self, format_option: str) -> 'TextPart':
        """Returns the whole source as a part. The format 'auto' becomes 'auto/files' or 'auto/text'."""
        format = format_option if format_option != 'auto' else 'auto/files' if self.single else 'auto/text'
        return TextPart(self.kind, self.path, self.name, 0, self.size, format=format)


@dataclasses.dataclass(frozen=True)
class TextPart:
    """The bytes (or records) [begin, end) of a source. Only the documents n with n % `of` == `stride` are read."""

    kind: str
    path: str
    name: str
    begin: int
    end: int
    of: int = 1
    stride: int = 0
    format: str = 'auto'


def parse_mixture(spec: str) -> list[tuple[str, float | str | None]]:
    """Splits 'A=0.7,B=0.3' into [('A', 0.7), ('B', 0.3)], 'A=auto' into [('A', AUTO)], and 'A,B' into [('A,B', None)].

    Each component with a weight becomes a separate store. Components without weights become one store. A `=0.7` at the
    end of an existing local path or of a single URL belongs to the path.

    Raises:
      UserError: A component is empty, a weight is invalid, only some components have weights, or only some are AUTO.
    """
    parts = [part.strip() for part in spec.split(',')]
    if not all(parts):
        fix = 'remove the empty part; for a name with a comma use a glob such as "a?b.txt"'
        raise UserError(_WHERE, f'an empty component in {spec!r}', 'PATH, or PATH,PATH, or PATH=0.7,PATH=0.3', fix)
    weighted: list[tuple[str, float | str | None]] = []
    for part in parts:
        match = re.fullmatch(r'(.+)=([-+0-9.eE]+|auto)', part)
        is_url = len(parts) == 1 and '://' in part  # perhaps a folder such as s3://texts/year=2024
        if not match or (is_url and match[2] != AUTO) or os.path.exists(os.path.expanduser(part)):
            weighted.append((part, None))
            continue
        if match[2] == AUTO:
            weighted.append((match[1], AUTO))
            continue
        try:
            weight = float(match[2])
        except ValueError:
            weight = -1.0
        if not 0 < weight < math.inf:
            found = f'the weight {match[2][:40]!r}'
            raise UserError(_WHERE, found, 'a number above 0', 'write for example PATH=0.7')
        weighted.append((match[1], weight))
    unweighted_parts = [part for part, weight in weighted if weight is None]
    if len(unweighted_parts) == len(weighted):
        return [(','.join(unweighted_parts), None)]
    if unweighted_parts:
        fix = f'give {unweighted_parts[0]!r} a weight, or remove all weights'
        raise UserError(_WHERE, f'weights on some components of {spec!r}', 'weights on all or on none', fix)
    if len({weight == AUTO for _, weight in weighted}) > 1:
        fix = 'give every component a number, or every component =auto'
        raise UserError(_WHERE, f'numbers together with =auto in {spec!r}', 'numbers or =auto for all components', fix)
    return weighted


def split_components(spec: str | Sequence[str]) -> list[str]:
    """Returns the paths, globs and datasets of one or several specifications, without weights."""
    joined = [part for item in ([spec] if isinstance(spec, str) else spec) for part, _ in parse_mixture(item)]
    return [part.strip() for part in ','.join(joined).split(',')]


def _file(path: epath.Path, name: str, **fields: Any) -> TextSource:
    try:
        stat = os.stat(path)
    except OSError as error:  # for example a dangling link; the reader reports the error
        reraise_machine_errors(error, path)
        return TextSource('file', os.fspath(path), name, 1, UNREADABLE, **fields)
    return TextSource('file', os.fspath(path), name, stat.st_size, str(stat.st_mtime_ns), inode=stat.st_ino, **fields)


def _resolve_one(spec: str, text_key: str) -> list[TextSource]:
    if spec == 'pydoc:' or spec.startswith('tfds:'):
        return [TextSource(spec.partition(':')[0], spec, *datasets.dataset_facts(spec, text_key))]
    if is_remote(spec):
        check_address(spec, _WHERE)
        objects, kind = find_objects(spec, _WHERE)
        fields = {'component': '' if kind == 'object' else spec, 'single': kind == 'folder'}
        return [TextSource('file', url, name, o.size, o.version, **fields) for url, name, o in objects]
    path = user_path(spec, _WHERE)
    if path.is_dir():
        top = path.name or path.resolve().name
        sources = [
            _file(file, f'{top}/{file.relative_to(path).as_posix()}', single=True, component=spec)
            for file in walk_files(path)
        ]
        if not sources:
            raise UserError(
                _WHERE, f'an empty directory {spec!r}', 'files of text', 'put files there, or give another directory'
            )
        return sources
    if kind := unusual_kind(path):
        fix = 'write its text into a file first: a corpus is read more than once'
        raise UserError(_WHERE, f'{kind}, {spec!r}', 'a file', fix)
    if path.exists():
        return [_file(path, path.name)]
    if is_pattern(spec):
        root, files = match_files(os.fspath(path))
        if not files:
            raise UserError(_WHERE, f'no file for {spec!r}', 'a glob that matches files', f'check it with: ls {spec}')
        return [_file(file, file.relative_to(root).as_posix(), component=spec) for file in files]
    fix = 'check the path; for a name with a comma use a glob such as "a?b.txt"'
    raise UserError(_WHERE, f'no such file {spec!r}', 'a file, directory, glob, pydoc: or tfds:NAME', fix)


def _refuse_non_text(sources: Iterable[TextSource]) -> None:
    """Raises a UserError if a file is a table, an archive or an office document, by its name."""
    for source in sources:
        if source.kind == 'file' and bare_suffix(source.path) in _NON_TEXT_SUFFIXES:
            found, fix = source.path, 'extract or convert it to text or JSON lines'
            if source.component:
                found, fix = f'{found} in {source.component}', 'name only the texts, for example FOLDER/*.txt'
            fix += ', or set --config.corpus_options.format=text if it is plain text'
            raise UserError(_WHERE, found, 'plain text or JSON lines', fix)


def resolve_sources(spec: str | Sequence[str], options: CorpusOptions = CorpusOptions()) -> list[TextSource]:
    """Returns all sources of a specification, each file once. The sources of each component are sorted.

    Raises:
      UserError: The specification has weights, which require several stores; a component is empty, matches no file or
        cannot be opened; or the format is 'auto', and a file is a table, an archive or an office document.
    """
    for item in [spec] if isinstance(spec, str) else spec:
        if parse_mixture(item)[0][1] is not None:
            fix = 'build a separate store from each component'
            raise UserError(_WHERE, f'weights in {item!r}', 'components without weights for one store', fix)
    sources = [source for part in split_components(spec) for source in _resolve_one(part, options.text_key)]
    unique: dict[str, TextSource] = {}
    for source in sources:
        unique.setdefault(source.path if is_remote(source.path) else os.path.realpath(source.path), source)
    if options.format == 'auto':
        _refuse_non_text(unique.values())
    return list(unique.values())
