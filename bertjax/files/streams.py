"""Reads plain or compressed files as chunks or lines, in bounded memory.

If a file is damaged, `chunks` yields the bytes decompressed before the error, and `Lines` yields their complete lines.
Then both raise an error of a type in `DAMAGE`.
"""

import bz2
import codecs
import dataclasses
import gzip
import io
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Iterator

import zstandard

CHUNK = 1 << 18  # bytes per read
MAX_LINE = 1 << 20  # bytes; a longer line of text is cut at white space
MAX_RECORD = 1 << 26  # bytes; a longer line of JSON is dropped, because it cannot be cut
_ZSTD_READ = 1 << 10  # compressed bytes per read; 4 bytes can encode 128 KiB, so a read expands to at most 32 MiB

_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
TOO_LONG = b'\0 too long'  # replaces a line longer than MAX_RECORD; compare with `is`
# A text may begin with 'BZh', so the magic number of a bzip2 block, or of the end of the data, must follow.
_MAGIC = re.compile(
    rb'(?P<gzip>\x1f\x8b)|(?P<bzip2>BZh[1-9](?:1AY&|\x17rE8))|(?P<xz>\xfd7zXZ\x00)|(?P<zstd>\x28\xb5\x2f\xfd)'
)
_SUFFIXES = {'.gz': 'gzip', '.bz2': 'bzip2', '.xz': 'xz', '.zst': 'zstd', '.zstd': 'zstd'}


class DamagedFileError(Exception):
    """A compressed file is truncated, but its library raises no error."""


# Decompressors raise an OSError without a number. An OSError with a number can be an error of the machine, so callers
# pass it to `disk.reraise_machine_errors` first.
DAMAGE = (DamagedFileError, EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def detect_compression(path: str, head: bytes) -> str:
    """Returns 'gzip', 'bzip2', 'xz', 'zstd' or ''. A magic number in `head`, the first 8 bytes, outranks the suffix."""
    if match := _MAGIC.match(head):
        return match.lastgroup
    return _SUFFIXES.get(os.path.splitext(path)[1].lower(), '') if head else ''


def has_compression_suffix(path: str) -> bool:
    """Returns whether the name of a file has the suffix of a compression format. The content is not checked."""
    return os.path.splitext(path)[1].lower() in _SUFFIXES


def bare_suffix(path: str) -> str:
    """Returns the suffix of a path, ignoring the suffix of a compression format: 'a.jsonl.gz' -> '.jsonl'."""
    stem, suffix = os.path.splitext(path)
    return (os.path.splitext(stem)[1] if suffix.lower() in _SUFFIXES else suffix).lower()


def _zstd_pieces(raw: io.BufferedIOBase) -> Iterator[bytes]:
    """Decompresses frame by frame, because zstandard's `stream_reader` accepts a truncated file without an error."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    while data := raw.read(_ZSTD_READ):
        while data:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b''
            frame = None if frame.eof else frame
    if frame is not None:
        raise DamagedFileError('ends inside a zstd frame')


def _join_pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Joins pieces into chunks of at least CHUNK bytes. Only the last chunk before the end or damage can be shorter."""
    ready = bytearray()
    try:
        for piece in pieces:
            ready += piece
            if len(ready) >= CHUNK:
                yield bytes(ready)
                ready.clear()
    except DAMAGE:
        yield bytes(ready)
        raise
    yield bytes(ready)


def chunks(raw: io.BufferedIOBase, compression: str) -> Iterator[bytes]:
    """Yields the decompressed bytes of an open file.

    Raises:
      one of DAMAGE: The file is damaged. The bytes decompressed before the error have been yielded.
    """
    if compression == 'zstd':
        yield from _join_pieces(_zstd_pieces(raw))
        return
    openers = {'gzip': lambda file: gzip.GzipFile(fileobj=file), 'bzip2': bz2.BZ2File, 'xz': lzma.LZMAFile}
    stream = openers[compression](raw) if compression else raw
    # Unlike `read1`, `read` would discard the bytes before the damage.
    while data := stream.read1(CHUNK):
        yield data


class CountedFile(io.RawIOBase):
    """The bytes [begin, end) of an open, seekable file. Without `end`, the range goes to the end of the file.

    At each read, `progress` is called with the number of bytes, and the hash object `digest` is updated with the bytes.
    If `progress` raises an OSError, the read raises a RuntimeError.
    """

    def __init__(self, file, begin: int = 0, end: int | None = None, progress=None, digest=None):
        super().__init__()
        self._file, self._progress, self._digest = file, progress, digest
        self._left = None if end is None else end - begin
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        size = len(buffer) if self._left is None else min(len(buffer), self._left)
        data = self._file.read(size)
        buffer[: len(data)] = data
        if self._left is not None:
            self._left -= len(data)
        if self._progress:
            try:
                self._progress(len(data))
            except OSError as error:  # the caller would treat an OSError as damage of the file
                raise RuntimeError('the progress of reading could not be reported') from error
        if self._digest:
            self._digest.update(data)
        return len(data)


def read_range(path: str, file, begin: int, end: int, progress=None, digest=None) -> Iterator[bytes]:
    """Yields the decompressed bytes of a range of an open file. A compressed file is always read to its end.

    All chunks except the last have at least CHUNK bytes, so that the first chunk is enough to recognize a format. For
    `begin`, `end`, `progress` and `digest`, see `CountedFile`.
    """
    compression = detect_compression(path, file.read(8) if begin == 0 else b'text')
    counted = CountedFile(file, begin, None if compression else end, progress, digest)
    return _join_pieces(chunks(io.BufferedReader(counted, CHUNK), compression))


def _with_line_feeds(source: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the bytes of `source`. If only carriage returns end its lines, replaces them with line feeds.

    The first MAX_LINE bytes decide: they have a carriage return and no line feed. If line feeds follow later, each
    '\\r\\n' becomes a single line feed.
    """
    head = b''
    try:
        for chunk in source:
            head += chunk
            if b'\n' in chunk or len(head) > MAX_LINE:
                break
    except DAMAGE:
        yield head.replace(b'\r', b'\n')
        raise
    if b'\n' in head or b'\r' not in head[:-1]:  # a line feed may follow the last byte
        yield head
        yield from source
    else:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder('latin-1')(), translate=True)
        for chunk in itertools.chain([head], source):
            yield decoder.decode(chunk).encode('latin-1')
        yield decoder.decode(b'', final=True).encode('latin-1')


class Lines:
    """An iterable of the lines in `source`, an iterator of chunks of bytes.

    A line feed ends a line; see `_with_line_feeds` for carriage returns. Line feeds, and a byte order mark at the start
    of the source, are removed.

    Args:
      cut: Whether to cut a line of more than MAX_LINE bytes into parts, and to yield the parts that are not blank. The
        parts have the same `number`. If False, TOO_LONG replaces a line of more than MAX_RECORD bytes.

    Attributes:
      number: The 1-based number of the last line yielded.
    """

    def __init__(self, source: Iterator[bytes], *, cut: bool = True):
        self.number = 0
        self._source, self._cut = source, cut

    def __iter__(self) -> Iterator[bytes]:
        limit = MAX_LINE if self._cut else MAX_RECORD
        # The number of complete lines, the incomplete line, and whether a part of it (or TOO_LONG) has been yielded.
        ended, rest, started = 0, b'', False
        for chunk in _with_line_feeds(self._source):
            lines = chunk.split(b'\n')
            lines[0] = rest + lines[0] if rest else lines[0]
            if not (ended or started):
                lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            rest = lines.pop()
            for line in lines:
                self.number = ended = ended + 1
                if len(line) <= limit and not started:
                    yield line
                    continue
                parts, last = self._split_long(line, started)
                yield from parts
                if last.strip() or not (parts or started):
                    yield last
                started = False
            if len(rest) > limit or (started and not self._cut):
                self.number = ended + 1
                parts, rest = self._split_long(rest, started)
                yield from parts
                started = started or bool(parts)
        if rest:
            self.number = ended + 1
            if rest.strip() or not started:
                yield rest

    def _split_long(self, line: bytes, started: bool) -> tuple[list[bytes], bytes]:
        """Returns the parts of a long line to yield, and the rest, which has at most MAX_LINE bytes."""
        if not self._cut:
            return [] if started else [TOO_LONG], b''
        parts = []
        while len(line) > MAX_LINE:
            at = max(line.rfind(b' ', 0, MAX_LINE), line.rfind(b'\t', 0, MAX_LINE)) + 1
            if not at:  # no white space: cut between two UTF-8 characters
                at = MAX_LINE
                while at > MAX_LINE - 4 and line[at] & 0xC0 == 0x80:
                    at -= 1
            parts.append(line[:at])
            line = line[at:]
        return [part for part in parts if part.strip()], line


@dataclasses.dataclass(frozen=True)
class Broken:
    """Invalid input: the kind of error, the line number (0 for the whole file), and the details."""

    kind: str
    line: int
    detail: str

    def located_in(self, name: str) -> str:
        """Returns `name:line`, or the `name` of the file if `line` is 0."""
        return f'{name}:{self.line}' if self.line else name


def decode(raw: bytes, number: int) -> str | Broken:
    """Decodes a line (or record) of UTF-8; returns a `Broken` if it is invalid."""
    if raw is TOO_LONG:
        return Broken('line too long', number, f'a line of more than {MAX_RECORD >> 20} MiB')
    if raw[:2] in (b'\xff\xfe', b'\xfe\xff'):
        return Broken('invalid UTF-8', number, 'the byte order mark of UTF-16')
    if b'\0' in raw:
        return Broken('NUL byte', number, f'a zero byte at byte {raw.index(0) + 1} of the line')
    try:
        return raw.decode('utf-8')
    except UnicodeDecodeError as error:
        detail = f'the byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line'
        return Broken('invalid UTF-8', number, detail)
