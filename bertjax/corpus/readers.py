"""Work units of text of any format, read as a flat stream of events in bounded memory.

The stream of a unit is: `Start`, then strings (a paragraph or a line each), then `END`, for each document; a `Broken`
inside says that the document is to be dropped, one outside that a whole file is. A document is never held whole, so
that one of a gigabyte is read like any other.
"""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator

from etils import epath

from bertjax.corpus import datasets, layouts, streams
from bertjax.corpus.layouts import END, Broken, Event, Start

Progress = Callable[[int], None] | None


@dataclasses.dataclass(frozen=True)
class Part:
    """What a unit reads of a source: in its bytes (or records) [begin, end), each document n with n % of == stride."""

    kind: str
    path: str
    name: str
    begin: int
    end: int
    of: int = 1
    stride: int = 0
    format: str = 'auto'


def _events_of(format: str, lines: streams.Lines, pick: layouts.Picker, part: Part, key: str) -> Iterator[Event]:
    if format == 'jsonl':
        return layouts.json_events(lines, pick, key)
    if format == 'wikiextractor':
        return layouts.wiki_events(lines, pick, first=part.stride == 0)
    return layouts.text_events(lines, pick, single=format == 'files')


def _lines_before(part: Part) -> int:
    """Number of lines before a part's first byte: counted only when there is something to complain about."""
    left, count = part.begin, 0
    with epath.Path(part.path).open('rb') as file:
        while left:
            data = file.read(min(left, 1 << 20))
            left, count = left - len(data), count + data.count(b'\n')
    return count


def _file_events(part: Part, key: str, progress: Progress, digest) -> Iterator[Event]:
    if part.end == 0:
        yield Broken('empty file', 0, 'a file of 0 bytes')
        return
    pick, lines = layouts.Picker(part.of, part.stride), streams.Lines(iter(()))
    try:
        with epath.Path(part.path).open('rb') as file:
            compression = streams.compression_of(part.path, file.read(8) if part.begin == 0 else b'text')
            counted = streams.CountedFile(file, part.begin, None if compression else part.end, progress, digest)
            source = streams.chunks(io.BufferedReader(counted, streams.CHUNK), compression)
            head = next((chunk for chunk in source if chunk), b'')
            format = layouts.sniff(part.path, head[: layouts.SNIFF], part.format)
            lines = streams.Lines(itertools.chain([head], source), cut=format != 'jsonl')
            for event in _events_of(format, lines, pick, part, key):
                if part.begin and type(event) is not str and event is not END:
                    event = dataclasses.replace(
                        event, line=event.line + _lines_before(part) if type(event) is Broken else 0
                    )
                yield event
    except streams.DAMAGE as error:
        mine = pick.mine if pick.inside else part.stride == 0
        if mine:
            # Decompressors raise OSError too, without a number.
            kind = 'unreadable file' if isinstance(error, OSError) and error.errno else 'damaged file'
            line = lines.number and lines.number + _lines_before(part)
            yield Broken(kind, line, str(error) or type(error).__name__)
        if mine and pick.inside:
            yield END


def _pydoc_events(part: Part) -> Iterator[Event]:
    for name, paragraphs in datasets.pydoc_documents():
        yield Start(name)
        yield from paragraphs
        yield END


def _tfds_events(part: Part, key: str, progress: Progress) -> Iterator[Event]:
    for index, raw in datasets.tfds_documents(part.path, key, part.begin, part.end):
        yield Start(index)
        text = layouts.decode(raw, index)
        if isinstance(text, Broken):
            yield text
        else:
            yield from datasets.tfds_paragraphs(text)
        yield END
        if progress:
            progress(1)


def read_events(part: Part, *, text_key: str = 'text', progress: Progress = None, digest=None) -> Iterator[Event]:
    """The events of one part of a source (see the top of this file).

    Args:
      part: what to read.
      text_key: the JSON field or tfds feature with the text.
      progress: called with the number of bytes (of a file, as stored) or records that were read since its last call.
      digest: a hash object that is updated with the bytes of a file as stored.
    """
    if part.kind == 'pydoc':
        return _pydoc_events(part)
    if part.kind == 'tfds':
        return _tfds_events(part, text_key, progress)
    return _file_events(part, text_key, progress, digest)
