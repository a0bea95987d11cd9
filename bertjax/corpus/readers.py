"""Work units of text of any format, read as a flat stream of events in bounded memory.

The stream of a unit is: `Start`, then strings (a paragraph or a line each), then `END`, for each document; a `Broken`
inside says that the document is to be dropped, one outside that a whole file is. A document is never held whole, so
that one of a gigabyte is read like any other.
"""

import dataclasses
import html
import io
import itertools
import json
from collections.abc import Callable, Iterator

from etils import epath

from bertjax.corpus import datasets, streams

SNIFF = 1 << 16  # Bytes of a file that its format is judged by.


@dataclasses.dataclass(frozen=True)
class Broken:
    """Input that is not what it should be: the kind, where (line 0: the whole file), and what was seen there."""

    kind: str
    line: int
    detail: str


@dataclasses.dataclass(frozen=True)
class Start:
    """The beginning of a document at a line (or record, or topic) of its file."""

    line: int | str


END = object()
Event = Start | Broken | str | object
Progress = Callable[[int], None] | None


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a source that one unit reads: bytes (or records) [begin, end), documents stride mod of."""

    kind: str
    path: str
    name: str
    begin: int
    end: int
    of: int = 1
    stride: int = 0
    format: str = 'auto'


def sniff(path: str, head: bytes, format: str) -> str:
    """The format of a file that begins with `head`; `format` is the user's, or 'auto/text' or 'auto/files'."""
    if not format.startswith('auto'):
        return format
    line = head.removeprefix(b'\xef\xbb\xbf').lstrip()
    if line.startswith(b'<doc '):
        return 'wikiextractor'
    if streams.bare_suffix(path) in ('.jsonl', '.ndjson') or _is_json(line):
        return 'jsonl'
    return format.partition('/')[2]


def _is_json(text: bytes) -> bool:
    line, end, _ = text.partition(b'\n')
    if not line.startswith(b'{'):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return not end and line.startswith(b'{"')  # The line is longer than what was looked at.


def _decode(raw: bytes, number: int) -> str | Broken:
    if raw is streams.TOO_LONG:
        return Broken('line too long', number, f'a line of more than {streams.MAX_RECORD >> 20} MiB')
    if raw[:2] in (b'\xff\xfe', b'\xfe\xff'):
        return Broken('invalid UTF-8', number, 'the byte order mark of UTF-16')
    if b'\0' in raw:
        return Broken('NUL byte', number, f'a zero byte at byte {raw.index(0) + 1} of the line')
    try:
        return raw.decode('utf-8')
    except UnicodeDecodeError as error:
        detail = f'the byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line'
        return Broken('invalid UTF-8', number, detail)


class Picker:
    """Counts documents, says which are of a part's stride, and remembers whether one is open."""

    def __init__(self, part: Part):
        self._of, self._stride, self._next = part.of, part.stride, -1
        self.mine = self.inside = False

    def start(self) -> bool:
        self._next += 1
        self.inside, self.mine = True, self._next % self._of == self._stride
        return self.mine


def text_events(lines: streams.Lines, pick: Picker, *, single: bool) -> Iterator[Event]:
    """Documents between blank lines, or with `single` the whole file as one."""
    for raw in lines:
        if not raw.strip():
            if pick.inside and not single:
                pick.inside = False
                if pick.mine:
                    yield END
            continue
        if not pick.inside and pick.start():
            yield Start(lines.number)
        if pick.mine:
            yield _decode(raw, lines.number)
    if pick.inside and pick.mine:
        yield END


def json_events(lines: streams.Lines, pick: Picker, key: str) -> Iterator[Event]:
    """A document a line, in the field `key` of a JSON object."""
    for raw in lines:
        if raw.strip() and pick.start():
            yield Start(lines.number)
            text = _decode(raw, lines.number)
            if isinstance(text, Broken):
                yield text
            else:
                yield from _json_paragraphs(text, lines.number, key)
            yield END
        pick.inside = False


def _json_paragraphs(text: str, number: int, key: str) -> Iterator[Event]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield Broken('wrong JSON', number, str(error))
        return
    if not isinstance(record, dict):
        yield Broken('wrong JSON', number, f'a {type(record).__name__} instead of an object')
        return
    value = record.get(key)
    if not isinstance(value, str):
        found = ', '.join(list(record)[:8]) or 'no field'
        yield Broken('missing text field', number, f'no string in the field {key!r}; there are: {found}')
    elif '\0' in value:
        yield Broken('NUL byte', number, 'a zero character in the JSON string')
    elif any('\ud800' <= char <= '\udfff' for char in value):
        yield Broken('invalid UTF-8', number, 'half a surrogate pair in the JSON string')
    else:
        paragraphs = [line for line in value.splitlines() if line.strip()]
        # WikiExtractor --json: the first line repeats the title.
        yield from paragraphs[1:] if paragraphs and paragraphs[0].strip() == record.get('title') else paragraphs


def wiki_events(lines: streams.Lines, pick: Picker, *, first: bool) -> Iterator[Event]:
    """WikiExtractor's <doc …> title, blank, paragraphs </doc>; the title line is no sentence and is left out."""
    title = outside = False
    for raw in lines:
        if raw.startswith(b'<doc '):
            if pick.inside and pick.mine:
                yield Broken('unclosed <doc>', lines.number, 'a new <doc …> before </doc>')
                yield END
            title, outside = True, False
            if pick.start():
                yield Start(lines.number)
        elif not pick.inside:
            if first and raw.strip() and not outside:
                outside = True
                yield Broken('text outside <doc>', lines.number, repr(raw[:40].decode('utf-8', 'replace')))
        elif raw.startswith(b'</doc>'):
            pick.inside = False
            if pick.mine:
                yield END
        elif title and raw.strip():
            title = False
        elif pick.mine and raw.strip():
            text = _decode(raw, lines.number)
            yield html.unescape(text) if isinstance(text, str) else text
    if pick.inside and pick.mine:
        yield Broken('unclosed <doc>', lines.number, 'the end of the file before </doc>')
        yield END


def _events_of(format: str, lines: streams.Lines, pick: Picker, part: Part, key: str) -> Iterator[Event]:
    if format == 'jsonl':
        return json_events(lines, pick, key)
    if format == 'wikiextractor':
        return wiki_events(lines, pick, first=part.stride == 0)
    return text_events(lines, pick, single=format == 'files')


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
    pick, lines = Picker(part), streams.Lines(iter(()))
    try:
        with epath.Path(part.path).open('rb') as file:
            compression = streams.compression_of(part.path, file.read(8) if part.begin == 0 else b'text')
            counted = streams.CountedFile(file, part.begin, None if compression else part.end, progress, digest)
            source = streams.chunks(io.BufferedReader(counted, streams.CHUNK), compression)
            head = next((chunk for chunk in source if chunk), b'')
            format = sniff(part.path, head[:SNIFF], part.format)
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
        text = _decode(raw, index)
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
