"""Decides whether a text still has the content that was read earlier. The paths and dates of the files may differ.

The record of the text that was read is a list of `KnownText`, stored in `inputs.json` beside the manifest of a store. A
file has changed if its size differs. If only its modification time or inode differs, the file is read again to compare
hashes.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.corpus.sources import UNREADABLE, TextPart, TextSource
from bertjax.corpus.store import TokenStore, hash_json
from bertjax.errors import UserError
from bertjax.files import disk, streams
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.remote.paths import open_file

RECORD = 'inputs.json'
ByteRange = tuple[int, int]  # the first byte, and the byte after the last
Shards = Sequence[Sequence[TextPart]]
LogFunction = Callable[[str], None]


def new_digest():
    """Returns a new hash object (BLAKE2b, 128 bits) for the digests of this module."""
    return hashlib.blake2b(digest_size=16)


class KnownText(NamedTuple):
    """The record of a file or dataset that was read."""

    name: str  # the name in reports
    facts: tuple[int, str, int]  # see `TextSource.facts`
    digests: list[tuple[int, int, str]]  # the begin, the end and the hash (hex) of each range that was read


def collect_digests(read: Iterable[tuple[TextPart, str]]) -> dict[tuple[str, ByteRange], str]:
    """Collects the pairs (part, digest) of `read` as {(path, range): digest}.

    Raises:
      UserError: Two readings of a file gave different bytes.
    """
    digests: dict[tuple[str, ByteRange], str] = {}
    for part, digest in read:
        if digests.setdefault((part.path, (part.begin, part.end)), digest) != digest:
            fix = 'start again when no program writes to the file'
            raise UserError(part.path, 'content that changed between two readings', 'a file that does not change', fix)
    return digests


def identify(sources: Sequence[TextSource], digests: Mapping[tuple[str, ByteRange], str]) -> list[KnownText]:
    """Makes the record of the sources from the digests of their ranges, {(path, range): digest}."""
    ranges: dict[str, list[tuple[int, int, str]]] = {source.path: [] for source in sources}
    for (path, part), digest in digests.items():
        ranges[path].append((*part, digest))
    return [KnownText(source.name, source.facts, ranges[source.path]) for source in sources]


def from_json(rows: list) -> list[KnownText]:
    """Converts the JSON values of a record, in which tuples became lists, back to a record."""
    return [KnownText(name, tuple(facts), list(map(tuple, digests))) for name, facts, digests in rows]


def read_record(directory: pathlib.Path, content: str) -> dict[str, Any] | None:
    """Reads the inputs.json of a store. `content` is the content hash in the store's manifest.

    Returns:
      {'files': a list of `KnownText`, 'readings': lines about how the text was read}; None if inputs.json is absent or
      damaged, or describes other content.
    """

    def parse(record: dict) -> dict[str, Any] | None:
        if record['content'] != content:
            return None
        return {'files': from_json(record['files']), 'readings': list(map(str, record['readings']))}

    return read_json_or_none(directory / RECORD, parse)


def write_record(directory: pathlib.Path, content: str, known: Sequence[KnownText], readings: Sequence[str]) -> None:
    """Writes inputs.json. Unlike the manifest, it depends on the paths and the dates of the text."""
    facts = {'content': content, 'readings': list(readings), 'files': known}
    write_atomic(directory / RECORD, json.dumps(facts) + '\n')


def read_readings(store: TokenStore) -> list[str]:
    """Returns lines that describe how the text of a finished store was read, or [] if they are unknown."""
    record = read_record(store.directory, store.manifest['inputs']['content'])
    return record['readings'] if record else []


def with_current_files(known: Sequence[KnownText], sources: Sequence[TextSource]) -> list[KnownText]:
    """Returns a record with the current facts of the sources, whose content must be unchanged."""
    return [text._replace(facts=source.facts) for text, source in zip(known, sources, strict=True)]


def describe_difference(known: Sequence[KnownText], sources: Sequence[TextSource], log: LogFunction) -> str | None:
    """Returns a description of how the sources differ from the record; None if they do not differ."""
    if len(known) != len(sources):
        return f'{len(sources):,} in place of {len(known):,} files'
    for text, source in zip(known, sources, strict=True):
        differs = text.facts[0] != source.size if source.kind == 'file' else text.facts != source.facts
        if not differs:
            continue
        if text.name != source.name:
            return f'{source.name} in place of {text.name}'
        if source.kind != 'file':
            return f'{source.name} is another version'
        return f'{source.name} has changed: {source.size:,} bytes in place of {text.facts[0]:,}'
    pairs = [pair for pair in zip(known, sources, strict=True) if pair[0].facts != pair[1].facts]
    if not pairs:
        return None
    others = f' and {len(pairs) - 1:,} other files' if len(pairs) > 1 else ''
    log(f'{pairs[0][1].path}{others} may have changed (another date or inode): comparing the content')
    ranges = [(source, row) for text, source in pairs for row in text.digests]
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda pair: digest_range(pair[0].path, pair[0].facts, *pair[1][:2]), ranges)
        changed = [source for (source, row), digest in zip(ranges, digests, strict=True) if row[-1] != digest]
    return f'{changed[0].name} has changed' if changed else None


@functools.lru_cache(maxsize=1 << 16)  # a run compares the same text for its vocabulary and its store
def digest_range(path: str, facts: tuple[int, str, int], begin: int, end: int) -> str:
    """Returns the hash that `formats.read_events` computes for a range of a file. Reading stops at any damage."""
    del facts  # part of the cache key
    digest = new_digest()
    if begin == end:  # an empty file, or a pipe, which would block
        return digest.hexdigest()
    try:
        with open_file(path) as file:
            for _ in streams.read_range(path, file, begin, end, digest=digest):
                pass
    except streams.DAMAGE as error:
        disk.reraise_machine_errors(error, path)
    return digest.hexdigest()


def is_same_text(known: KnownText | TextSource, source: TextSource) -> bool:
    """Whether two files of the same size have the same content, or two datasets have the same name and facts."""
    if source.kind != 'file':
        return (known.name, known.facts) == (source.name, source.facts)
    if UNREADABLE in (known.facts[1], source.facts[1]):
        return False
    if known.facts == source.facts:
        return True
    if isinstance(known, TextSource):
        return known.kind == 'file' and _equal_bytes(known.path, source.path)
    return all(digest_range(source.path, source.facts, begin, end) == digest for begin, end, digest in known.digests)


def _equal_bytes(a: str, b: str) -> bool:
    """Whether two files have the same bytes. Reading stops at the first difference. An unreadable file equals none."""
    try:
        with open_file(a) as file, open_file(b) as other:
            while (block := file.read(streams.CHUNK)) == other.read(streams.CHUNK):
                if not block:
                    return True
    except OSError as error:
        disk.reraise_machine_errors(error, a)
    return False


def hash_content(shards: Shards, digests: Mapping[tuple[str, ByteRange], str]) -> str:
    """Returns the content hash for the manifest, computed from the names, bounds and digests of all parts."""
    rows = [
        [[p.name, p.begin, p.end, p.of, p.stride, digests[p.path, (p.begin, p.end)]] for p in parts] for parts in shards
    ]
    return hash_json(rows)


def hash_names(sources: Sequence[TextSource]) -> str:
    """Returns the hash of the kinds, names and sizes of the sources, and of the stamps of datasets."""
    # The stamp of a file is left out, because it may change without the content.
    rows = [
        [source.kind, source.name, source.size, '' if source.kind == 'file' else source.stamp] for source in sources
    ]
    return hash_json(rows)
