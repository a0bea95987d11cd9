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

from bertjax.corpus import datasets, sequences
from bertjax.corpus.sequences import SequenceSentence, list_fields, parse_json_object, parse_sentences
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.errors import UserError
from bertjax.files import disk, streams
from bertjax.files.paths import unusual_kind
from bertjax.files.streams import Broken, decode
from bertjax.remote.paths import open_file

SNIFF = 1 << 16  # The number of bytes at the start of a file from which its format is detected.
HEAD = 1 << 18  # The number of bytes at the start of a file from which the meaning of blank lines is detected.
OnProgress = Callable[[int], None] | None


class Document(enum.Enum):
    """The events at the start and the end of a document."""

    START = enum.auto()
    END = enum.auto()


Event = Document | Broken | SequenceSentence | str


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
      UserError: The file is JSON but not JSON lines.
    """
    head = head[:SNIFF]
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


class Picker:
    """Counts documents, and selects each document n for which n % `of` == `stride`.

    `inside` is whether a document is open, and `selected` whether the last opened document is selected.
    """

    def __init__(self, of: int, stride: int):
        self._of, self._stride, self._next = of, stride, -1
        self.selected = self.inside = False

    def start(self) -> bool:
        """Opens the next document and returns whether it is selected."""
        self._next += 1
        self.inside, self.selected = True, self._next % self._of == self._stride
        return self.selected


def text_events(lines: streams.Lines, pick: Picker, *, single: bool) -> Iterator[Event]:
    """Yields the events of documents that blank lines separate. If `single`, the whole file is one document."""
    for raw in lines:
        if not raw.strip():
            if pick.inside and not single:
                pick.inside = False
                if pick.selected:
                    yield Document.END
            continue
        if not pick.inside and pick.start():
            yield Document.START
        if pick.selected:
            yield decode(raw, lines.number)
    if pick.inside and pick.selected:
        yield Document.END


def json_events(
    lines: streams.Lines, pick: Picker, read: Callable[[dict[str, Any], int], Iterator[Event]]
) -> Iterator[Event]:
    """Yields the events of JSON lines, one document on each line. `read` takes the object and number of a line."""
    for raw in lines:
        if raw.strip() and pick.start():
            yield Document.START
            text = decode(raw, lines.number)
            record = text if isinstance(text, Broken) else parse_json_object(text, lines.number)
            yield from [record] if isinstance(record, Broken) else read(record, lines.number)
            yield Document.END
        pick.inside = False


def _json_paragraphs(record: dict[str, Any], number: int, *, key: str) -> Iterator[Event]:
    value = record.get(key)
    if key in record and not isinstance(value, str):
        found = 'null' if value is None else f'a JSON {type(value).__name__}'
        yield Broken('missing text field', number, f'{found} in place of a string in the field {key!r}')
    elif key not in record:
        yield Broken('missing text field', number, f'no string in the field {key!r}; there are: {list_fields(record)}')
    elif '\0' in value:
        yield Broken('NUL byte', number, 'a zero character in the JSON string')
    elif any('\ud800' <= char <= '\udfff' for char in value):
        yield Broken('invalid UTF-8', number, 'half a surrogate pair in the JSON string')
    else:
        paragraphs = [line for line in value.splitlines() if line.strip()]
        # Before version 3, WikiExtractor --json repeated the title in the first line.
        has_title = key != 'title' and paragraphs and paragraphs[0].strip() == record.get('title')
        yield from paragraphs[1:] if has_title else paragraphs


def wiki_events(lines: streams.Lines, pick: Picker, *, first: bool) -> Iterator[Event]:
    """Yields the events of WikiExtractor's output, without titles.

    A document consists of <doc …>, the title, a blank line, paragraphs, and </doc>. If `first`, text outside of
    documents is reported as broken. `first` is False for strides other than 0, which would repeat the report.
    """
    title = outside = False
    for raw in lines:
        if raw.startswith(b'<doc '):
            if pick.inside and pick.selected:
                yield Broken('unclosed <doc>', lines.number, 'a new <doc …> before </doc>')
                yield Document.END
            title, outside = True, False
            if pick.start():
                yield Document.START
        elif not pick.inside:
            if first and raw.strip() and not outside:
                outside = True
                yield Broken('text outside <doc>', lines.number, repr(raw[:40].decode('utf-8', 'replace')))
        elif raw.startswith(b'</doc>'):
            pick.inside = False
            if pick.selected:
                yield Document.END
        elif title and raw.strip():
            title = False
        elif pick.selected and raw.strip():
            text = decode(raw, lines.number)
            yield html.unescape(text) if isinstance(text, str) else text
    if pick.inside and pick.selected:
        yield Broken('unclosed <doc>', lines.number, 'the end of the file before </doc>')
        yield Document.END


def _layout_events(
    format: str, lines: streams.Lines, pick: Picker, part: TextPart, options: CorpusOptions
) -> Iterator[Event]:
    if format == 'jsonl':
        return json_events(lines, pick, functools.partial(_json_paragraphs, key=options.text_key))
    if format in sequences.FORMATS:
        read = functools.partial(parse_sentences, key=options.text_key, format=format, segments=options.segments > 0)
        return json_events(lines, pick, read)
    if format == 'wikiextractor':
        return wiki_events(lines, pick, first=part.stride == 0)
    return text_events(lines, pick, single=format == 'files')


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
    pick, lines = Picker(part.of, part.stride), streams.Lines(iter(()))
    lines_before = functools.cache(lambda: _count_lines_before(part))
    try:
        with open_file(part.path) as file:
            source = streams.read_range(part.path, file, part.begin, part.end, progress, digest)
            head = next((chunk for chunk in source if chunk), b'')
            format = sniff(part.path, head, part.format)
            cut = format not in ('jsonl', *sequences.FORMATS)
            lines = streams.Lines(itertools.chain([head], source), cut=cut)
            for event in _layout_events(format, lines, pick, part, options):
                if part.begin and type(event) in (Broken, SequenceSentence):
                    event = dataclasses.replace(event, line=event.line + lines_before())
                yield event
    except streams.DAMAGE as error:
        disk.reraise_machine_errors(error, part.path)
        in_stride = pick.selected if pick.inside else part.stride == 0  # so that only one part reports the error
        if in_stride:
            kind = 'unreadable file' if isinstance(error, OSError) and error.errno else 'damaged file'
            # A later part gives no line number, because the lines before it may be unreadable and cannot be counted.
            yield Broken(kind, 0 if part.begin else lines.number, str(error) or type(error).__name__)
        if in_stride and pick.inside:
            yield Document.END


def _dataset_events(part: TextPart, key: str, progress: OnProgress) -> Iterator[Event]:
    if part.kind == 'pydoc':
        documents = (paragraphs for _, paragraphs in datasets.pydoc_documents())
    else:
        records = datasets.tfds_documents(part.path, key, part.begin, part.end)
        texts = (decode(raw, index) for index, raw in records)
        documents = ([text] if isinstance(text, Broken) else datasets.tfds_paragraphs(text) for text in texts)
    for paragraphs in documents:
        yield Document.START
        yield from paragraphs
        yield Document.END
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
