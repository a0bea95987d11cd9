"""Whether a text is the one that was read: its content decides, not its place, its dates or its folder's name.

What was read is kept as a list of `KnownText` (beside a store's manifest, in `inputs.json`). A file is read again, to
compare its hash, only where its size, modification time or inode differ from what they were.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bertjax.corpus.sources import TextPart, TextSource
from bertjax.corpus.store import TokenStore
from bertjax.errors import UserError
from bertjax.files import disk, streams
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.remote.paths import open_file

RECORD = 'inputs.json'
Range = tuple[int, int]  # The first byte, and the one after the last.
Shards = Sequence[Sequence[TextPart]]
LogFunction = Callable[[str], None]


def new_digest():
    """The hash of which `digest`s are."""
    return hashlib.blake2b(digest_size=16)


@dataclasses.dataclass(frozen=True)
class KnownText:
    """A file or dataset as it was when it was read.

    Attributes:
      name: its name in the store.
      facts: its size, stamp and inode (see `TextSource`); None where it must be read to be known.
      digests: hashes of the ranges that were read; None in records of stores that do not have them.
    """

    name: str
    facts: tuple[int, str, int] | None
    digests: dict[Range, str] | None = None


def facts_of(source: TextSource) -> tuple[int, str, int]:
    """What tells whether it must be read again."""
    return source.size, source.stamp, source.inode


def digests_of(read: Iterable[tuple[TextPart, str]]) -> dict[tuple[str, Range], str]:
    """{(path, range): digest} of the parts of a build.

    Raises:
      UserError: a file gave different bytes to those who read it one after the other.
    """
    digests: dict[tuple[str, Range], str] = {}
    for part, digest in read:
        if digests.setdefault((part.path, (part.begin, part.end)), digest) != digest:
            found, fix = 'other content than a moment ago', 'start again when nobody writes to it'
            raise UserError(part.path, found, 'one content while it is read', fix)
    return digests


def identify(found: Sequence[TextSource], digests: Mapping[tuple[str, Range], str]) -> list[KnownText]:
    """The record of sources that were read."""
    ranges: dict[str, dict[Range, str]] = {source.path: {} for source in found}
    for (path, part), digest in digests.items():
        ranges[path][part] = digest
    return [KnownText(source.name, facts_of(source), ranges[source.path]) for source in found]


def to_json(known: Sequence[KnownText]) -> list:
    """For `from_json`."""
    return [
        [one.name, one.facts, one.digests and [[*part, digest] for part, digest in one.digests.items()]]
        for one in known
    ]


def from_json(rows: list) -> list[KnownText]:
    """What `to_json` was given."""
    return [
        KnownText(name, tuple(facts), None if digests is None else {(a, b): digest for a, b, digest in digests})
        for name, facts, digests in rows
    ]


def read_record(directory: pathlib.Path, content: str) -> dict[str, Any] | None:
    """'files' (see `KnownText`) and 'readings' of the store whose manifest has this `content`; None if not known."""

    def parse(record: dict) -> dict[str, Any] | None:
        if record['content'] != content:
            return None
        return {'files': from_json(record['files']), 'readings': list(map(str, record['readings']))}

    return read_json_or_none(directory / RECORD, parse)


def write_record(directory: pathlib.Path, content: str, known: Sequence[KnownText], readings: Sequence[str]) -> None:
    """Writes inputs.json: beside the manifest, which is the same wherever and whenever the text is read."""
    facts = {'content': content, 'readings': list(readings), 'files': to_json(known)}
    write_atomic(directory / RECORD, json.dumps(facts) + '\n')


def readings_of(store: TokenStore) -> list[str]:
    """How the text of a finished store was read, in words, where that is known."""
    record = read_record(store.directory, store.manifest['inputs']['content'])
    return record['readings'] if record else []


def stale(known: Sequence[KnownText], found: Sequence[TextSource]) -> list[int]:
    """The numbers of the sources that may have changed; both lists are of the same length."""
    return [i for i, (one, source) in enumerate(zip(known, found, strict=True)) if one.facts != facts_of(source)]


def with_current_files(known: Sequence[KnownText], found: Sequence[TextSource]) -> list[KnownText]:
    """The record with the facts of the sources as they are now, when they were found to be of the same content."""
    return [dataclasses.replace(one, facts=facts_of(source)) for one, source in zip(known, found, strict=True)]


def other_files(known: Sequence[KnownText], found: Sequence[TextSource]) -> str | None:
    """How the sources differ from what was read in number, size or version, in words; None where they do not."""
    if len(known) != len(found):
        return f'{len(found):,} in place of {len(known):,} files'
    for one, source in zip(known, found, strict=True):
        if source.kind != 'file' and one.facts != facts_of(source):
            return f'{source.name} is another version'
        if one.facts and one.facts[0] != source.size:
            return f'{source.name} has changed: {source.size:,} bytes in place of {one.facts[0]:,}'
    return None


def difference(known: Sequence[KnownText], found: Sequence[TextSource], say: LogFunction = logging.info) -> str | None:
    """How the sources differ from what was read, in words; None where they are the same.

    Those that may have changed must have their digests in `known`.
    """
    reason = other_files(known, found)
    if reason is not None:
        return reason
    pairs = [(known[i], found[i]) for i in stale(known, found)]
    digests = iter(read_again([(source, part) for one, source in pairs for part in one.digests], say))
    for one, source in pairs:
        now = [next(digests) for _ in one.digests]
        if now != list(one.digests.values()):
            return f'{source.name} has changed'
    return None


def read_again(wanted: Sequence[tuple[TextSource, Range]], say: LogFunction = logging.info) -> list[str]:
    """The digests of ranges of files, read on all cores; each file that is unchanged once a process."""
    paths = list(dict.fromkeys(source.path for source, _ in wanted if source.kind == 'file'))
    if paths:
        others = f' and {len(paths) - 1:,} other files' if len(paths) > 1 else ''
        say(f'{paths[0]}{others} may have changed (dates, place or inode have): reading to compare')
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda one: _digest_of(*one), wanted))


def _digest_of(source: TextSource, part: Range) -> str:
    return _digest(source.path, facts_of(source), *part) if source.kind == 'file' else new_digest().hexdigest()


@functools.lru_cache(maxsize=1 << 16)
def _digest(path: str, facts: tuple[int, str, int], begin: int, end: int) -> str:
    """The hash of a range of a file as `formats.read_events` makes it: of a damaged file, up to the damage."""
    del facts  # Part of the cache's key.
    digest = new_digest()
    if begin == end:  # Empty, or a pipe, which opening would wait for.
        return digest.hexdigest()
    try:
        with open_file(path) as file:
            for _ in streams.part_chunks(path, file, begin, end, digest=digest):
                pass
    except streams.DAMAGE as error:
        disk.raise_passing(error, path)
    return digest.hexdigest()


def content_of(shards: Shards, digests: Mapping[tuple[str, Range], str]) -> str:
    """The hash of a whole text that a manifest holds; `digests` of the ranges of each path."""
    rows = [
        [[p.name, p.begin, p.end, p.of, p.stride, digests[p.path, (p.begin, p.end)]] for p in parts] for parts in shards
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def same_content(
    content: str,
    known: Sequence[KnownText],
    found: Sequence[TextSource],
    cuts: Iterable[Shards],
    say: LogFunction = logging.info,
) -> list[KnownText] | None:
    """The record of a text of which only the hash of the whole is known, with its digests; None if it is another text.

    Args:
      content: the hash, from a manifest.
      known: names of the sources in that store.
      found: the sources.
      cuts: the ways in which they may have been cut when they were read.
    """
    names = {source.path: one.name for one, source in zip(known, found, strict=True)}
    sources = {source.path: source for source in found}
    for cut in cuts:
        shards = [[dataclasses.replace(part, name=names[part.path]) for part in parts] for parts in cut]
        ranges = list(dict.fromkeys((part.path, (part.begin, part.end)) for parts in shards for part in parts))
        digests = dict(zip(ranges, read_again([(sources[path], one) for path, one in ranges], say), strict=True))
        if content == content_of(shards, digests):
            named = [dataclasses.replace(source, name=names[source.path]) for source in found]
            return identify(named, digests)
    return None


def names_hash(found: Sequence[TextSource], names: Sequence[str]) -> str:
    """The hash of names and sizes that a manifest holds."""
    # The time of a file says nothing of its content; a dataset's version and the hash of Python's help do.
    rows = [[s.kind, name, s.size, '' if s.kind == 'file' else s.stamp] for s, name in zip(found, names, strict=True)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def names_before(found: Sequence[TextSource], inputs: dict) -> list[str] | None:
    """The names of these sources in a store (`inputs` of its manifest), where they may be others now; None: others."""
    if len(found) != inputs['count']:
        return None
    for names in _possible_names(found, inputs['first']):
        if names_hash(found, names) == inputs['names']:
            return names
    return None


def _possible_names(found: Sequence[TextSource], first: Sequence[str]) -> Iterator[list[str]]:
    yield [source.name for source in found]
    yield [source.old_name for source in found]
    # A renamed folder, or a renamed file among the few that a manifest names.
    top = first[0].partition('/')[0]
    names = [f'{top}/{s.name.partition("/")[2]}' if s.single else s.name for s in found]
    yield [*first, *names[len(first) :]]
