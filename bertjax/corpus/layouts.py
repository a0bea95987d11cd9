"""The layouts of text files: lines of bytes to the events of documents."""

import dataclasses
import html
import json
from collections.abc import Iterator

from bertjax.corpus import streams

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


def decode(raw: bytes, number: int) -> str | Broken:
    """A line, or record, of UTF-8 as text, or what is wrong with it."""
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
    """Counts documents, says which are of a stride, and remembers whether one is open."""

    def __init__(self, of: int, stride: int):
        self._of, self._stride, self._next = of, stride, -1
        self.mine = self.inside = False

    def start(self) -> bool:
        """Opens the next document and says whether it is of the stride."""
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
            yield decode(raw, lines.number)
    if pick.inside and pick.mine:
        yield END


def json_events(lines: streams.Lines, pick: Picker, key: str) -> Iterator[Event]:
    """A document a line, in the field `key` of a JSON object."""
    for raw in lines:
        if raw.strip() and pick.start():
            yield Start(lines.number)
            text = decode(raw, lines.number)
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
            text = decode(raw, lines.number)
            yield html.unescape(text) if isinstance(text, str) else text
    if pick.inside and pick.mine:
        yield Broken('unclosed <doc>', lines.number, 'the end of the file before </doc>')
        yield END
