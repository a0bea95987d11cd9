"""Reads text of every format as a flat stream of events, in bounded memory.

The events of a document are `Document.START`, one string for each paragraph or line, and `Document.END`. A document
that is not text has `SequenceSentence`s instead of strings. A `Broken` event inside a document marks the document as
broken. A `Broken` event between documents reports text outside of documents, or an empty, damaged or unreadable file.
Only lines of JSON and records of datasets are in memory as complete documents.
"""

import dataclasses
import enum
import functools
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.corpus import datasets
from bertjax.corpus.sequences import SequenceSentence, describe_wrong_field, parse_json_object, parse_sentences
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.errors import UserError
from bertjax.files import disk, streams
from bertjax.files.paths import unusual_kind
from bertjax.files.streams import Broken, decode
from bertjax.remote.paths import open_file

SNIFF = 1 << 16  # The number of bytes at the start of a file from which its format is detected.
HEAD = 1 << 18  # The number of bytes at the start of a file from which the meaning of blank lines is detected.
# A regular expression of a blank line in UTF-8: the characters of `str.isspace`, except the line feed.
BLANK = (
    rb'(?:[ \t\r\f\v\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|'
    rb'\xe2(?:\x80[\x80-\x8a\xa8\xa9\xaf]|\x81\x9f)|\xe3\x80\x80)*+'
)
_BLANK_LINE = re.compile(BLANK)
OnProgress = Callable[[int], None] | None


class Document(enum.Enum):
    """The events at the start and the end of a document."""

    START = enum.auto()
    END = enum.auto()


_START, _END = Document  # read once, because reading a member of an Enum is slow in Python 3.11
Event = Document | Broken | SequenceSentence | str
# The fields beside the text in records of WikiExtractor 3 --json, which escapes the HTML characters of the text.
_WIKI_FIELDS = {'id', 'revid', 'url', 'title'}


def read_head(path: str) -> tuple[str | None, bytes]:
    """Returns the compression ('' if there is none) and the first decompressed bytes of a file.

    The compression is None for a pipe, a device, or an unreadable file. Only `read_events` reports damage.
    """
    compression, head = None, b''
    if unusual_kind(path):  # opening a pipe without a writer would block
        return compression, head
    try:
        with open_file(path) as file:
            compression = streams.detect_compression(path, file.read(8))
            file.seek(0)
            for chunk in streams.chunks(file, compression):
                head += chunk
                if len(head) >= HEAD:
                    break
    except streams.DAMAGE as error:
        disk.reraise_machine_errors(error, path)
        compression = compression if head else None
    return compression, head


def sniff(path: str, head: bytes, format: str) -> str:
    """Returns the format of a file that begins with `head`. `format` is `TextPart.format`.

    Raises:
      UserError: The file is a tar archive, or JSON but not JSON lines.
    """
    head = head[:SNIFF]
    if head.startswith((b'ustar\0', b'ustar  \0'), 257):  # the magic of POSIX and of GNU tar, in the first header
        raise UserError(path, 'a tar archive', 'a text file', 'extract it, and name the extracted texts')
    if not format.startswith('auto'):
        return format
    line = head.removeprefix(b'\xef\xbb\xbf').lstrip()
    if line.startswith(b'<doc '):
        return 'wikiextractor'
    suffix = streams.bare_suffix(path)
    if suffix in ('.jsonl', '.ndjson') or _is_json(line):
        return 'jsonl'
    if suffix == '.json' and line[:1] in (b'[', b'{'):
        expected = 'JSON lines, an object with the text on each line'
        shape, convert = ('a list', "'.[]'") if line.startswith(b'[') else ('an object on several lines', '.')
        fix = f'convert it: jq -c {convert} (write a string S as {{"text": S}}); for plain text set format=text'
        raise UserError(path, f'JSON with {shape}', expected, fix)
    return format.partition('/')[2]


def _is_json(text: bytes) -> bool:
    line, end, _ = text.partition(b'\n')
    if not line.startswith(b'{'):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return not end and re.match(rb'\{\s*"', line) is not None  # the line may continue after `text`
    except RecursionError:
        return True  # the reader drops the document and reports the reason


# An event before lines are decoded: `Document`, the bytes of a line, or `Broken` for tags or text in a wrong place.
_RawEvent = Document | Broken | bytes


def _text_documents(lines: streams.Lines, single: bool = False) -> Iterator[_RawEvent]:
    """Yields the documents that blank lines separate. If `single`, the whole file is one document."""
    inside = False
    for raw in lines:
        if not _BLANK_LINE.fullmatch(raw):
            if not inside:
                inside = True
                yield _START
            yield raw
        elif inside and not single:
            inside = False
            yield _END
    if inside:
        yield _END


def _line_documents(lines: streams.Lines) -> Iterator[_RawEvent]:
    """Yields one document for each line."""
    for raw in lines:
        if raw.strip():
            yield _START
            yield raw
            yield _END


def _wiki_documents(lines: streams.Lines) -> Iterator[_RawEvent]:
    """Yields the documents of WikiExtractor's output: <doc …>, the title, a blank line, paragraphs, and </doc>.

    The titles are left out.
    """
    inside = title = outside = False
    for raw in lines:
        if raw.startswith(b'<doc '):
            if inside:
                yield Broken('unclosed <doc>', lines.number, 'a new <doc …> before </doc>')
                yield _END
            inside, title, outside = True, True, False
            yield _START
        elif not inside:
            if raw.strip() and not outside:
                outside = True
                yield Broken('text outside <doc>', lines.number, repr(raw[:40].decode('utf-8', 'replace')))
        elif raw.startswith(b'</doc>'):
            inside = False
            yield _END
        elif title and raw.strip():
            title = False
        elif raw.strip():
            yield raw
    if inside:
        yield Broken('unclosed <doc>', lines.number, 'the end of the file before </doc>')
        yield _END


_DOCUMENTS = {  # all formats without JSON
    'text': _text_documents,
    'files': functools.partial(_text_documents, single=True),
    'wikiextractor': _wiki_documents,
}


def _json_paragraphs(record: dict[str, Any], number: int, key: str) -> Iterator[Event]:
    value = record.get(key)
    if not isinstance(value, str):
        yield Broken('missing text field', number, describe_wrong_field(record, key, 'string'))
    elif '\0' in value:
        yield Broken('NUL byte', number, 'a zero character in the JSON string')
    elif any('\ud800' <= char <= '\udfff' for char in value):
        yield Broken('invalid UTF-8', number, 'half a surrogate pair in the JSON string')
    else:
        if key == 'text' and record.keys() >= _WIKI_FIELDS:
            value = html.unescape(value)
        paragraphs = [line for line in value.splitlines() if line.strip()]
        # Before version 3, WikiExtractor --json repeated the title in the first line.
        has_title = key != 'title' and paragraphs and paragraphs[0].strip() == record.get('title')
        yield from paragraphs[1:] if has_title else paragraphs


def _line_events(format: str, raw: bytes, number: int, options: CorpusOptions) -> Iterator[Event]:
    """Yields the events of line `number`, which belongs to a document."""
    text = decode(raw, number)
    if isinstance(text, Broken):
        yield text
    elif format in _DOCUMENTS:
        yield html.unescape(text) if format == 'wikiextractor' else text
    elif isinstance(record := parse_json_object(text, number), Broken):
        yield record
    elif format == 'jsonl':
        yield from _json_paragraphs(record, number, options.text_key)
    else:
        segments = options.segments > 0
        yield from parse_sentences(record, number, key=options.text_key, format=format, segments=segments)


def _count_lines_before(part: TextPart) -> int:
    left, count = part.begin, 0
    with open_file(part.path) as file:
        while data := file.read(min(left, 1 << 20)):
            left, count = left - len(data), count + data.count(b'\n')
    return count


def _file_events(part: TextPart, options: CorpusOptions, progress: OnProgress, digest) -> Iterator[Event]:
    if part.end == 0:
        kind = unusual_kind(part.path)
        yield Broken('unreadable file', 0, kind) if kind else Broken('empty file', 0, 'a file of 0 bytes')
        return
    lines, lines_before = streams.Lines(iter(())), functools.cache(lambda: _count_lines_before(part))
    # A part has the documents n with n % `of` == `stride`. Only the part of stride 0 reports text between documents.
    documents, inside, selected = 0, False, part.stride == 0
    try:
        with open_file(part.path) as file:
            source = streams.read_range(part.path, file, part.begin, part.end, progress, digest)
            head = next((chunk for chunk in source if chunk), b'')
            format = sniff(part.path, head, part.format)
            lines = streams.Lines(itertools.chain([head], source), cut=format in _DOCUMENTS)
            for raw in _DOCUMENTS.get(format, _line_documents)(lines):
                if raw is _START:
                    inside, selected = True, documents % part.of == part.stride
                    documents += 1
                if selected:
                    is_line = type(raw) is bytes
                    for event in _line_events(format, raw, lines.number, options) if is_line else (raw,):
                        if part.begin and type(event) in (Broken, SequenceSentence):
                            event = dataclasses.replace(event, line=event.line + lines_before())
                        yield event
                if raw is _END:
                    inside, selected = False, part.stride == 0
    except streams.DAMAGE as error:
        disk.reraise_machine_errors(error, part.path)
        if selected:
            kind = 'unreadable file' if isinstance(error, OSError) and error.errno else 'damaged file'
            # A later part gives no line number, because the lines before it may be unreadable and cannot be counted.
            yield Broken(kind, 0 if part.begin else lines.number, str(error) or type(error).__name__)
            if inside:
                yield _END


def _dataset_events(part: TextPart, key: str, progress: OnProgress) -> Iterator[Event]:
    for paragraphs in datasets.dataset_documents(part.path, key, part.begin, part.end):
        yield _START
        yield from paragraphs
        yield _END
        if progress:
            progress(1)


def read_events(part: TextPart, options: CorpusOptions, *, progress: OnProgress = None, digest=None) -> Iterator[Event]:
    """Yields the events of a part of a source. Broken input gives a `Broken` event, whether or not `strict` is set.

    Args:
      progress: A function that is called with the number of new bytes of a file, before decompression, or of new
        records of a dataset.
      digest: A hash object that is updated with the bytes of a file, before decompression.
    """
    if part.kind == 'file':
        return _file_events(part, options, progress, digest)
    return _dataset_events(part, options.text_key, progress)
