"""Bytes from open files: plain or compressed, line by line in bounded memory.

A damaged file raises one of `DAMAGE` where the damage shows, after all that can be read before it.
"""

import bz2
import dataclasses
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import zstandard

CHUNK = 1 << 18  # Bytes read at once.
MAX_LINE = 1 << 20  # A longer line of text is read in pieces, cut at white space.
MAX_RECORD = 1 << 26  # A longer line of JSON, which cannot be cut, is dropped.
_ZSTD_READ = 1 << 10  # Compressed bytes taken at once: a block of 128 KiB may have 4, so that these hold up to 32 MiB.

_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
TOO_LONG = b'\0 too long'  # Stands for a line over MAX_RECORD; compare by identity.
_MAGIC = {b'\x1f\x8b': 'gzip', b'BZh': 'bzip2', b'\xfd7zXZ\x00': 'xz', b'\x28\xb5\x2f\xfd': 'zstd'}
_SUFFIXES = {'.gz': 'gzip', '.bz2': 'bzip2', '.xz': 'xz', '.zst': 'zstd', '.zstd': 'zstd'}


class DamagedFileError(Exception):
    """A compressed file is truncated, where the library that decompresses it does not notice."""


# Decompressors raise OSError too, but without an error number. Of those with one see `disk.raise_passing`.
DAMAGE = (DamagedFileError, EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def compression_of(path: str, head: bytes) -> str:
    """'gzip', 'bzip2', 'xz', 'zstd' or '' of a file that begins with `head`: by its content, then by its name."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return _SUFFIXES.get(os.path.splitext(path)[1].lower(), '') if head else ''


def named_compressed(path: str) -> bool:
    """Whether the file's name says that it is compressed (its content may differ)."""
    return os.path.splitext(path)[1].lower() in _SUFFIXES


def bare_suffix(path: str) -> str:
    """The suffix of the file's format, without that of its compression: 'a.jsonl.gz' -> '.jsonl'."""
    stem, suffix = os.path.splitext(path)
    return (os.path.splitext(stem)[1] if suffix.lower() in _SUFFIXES else suffix).lower()


def _zstd_pieces(raw: io.BufferedIOBase) -> Iterator[bytes]:
    """Decompresses frame by frame, because `zstandard.stream_reader` accepts a truncated file without an error."""
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


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, CHUNK or more at a time but for the last, and for those before damage."""
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
    """The decompressed bytes of an open file, up to the damage if there is some (then it raises one of DAMAGE)."""
    if compression == 'zstd':
        yield from _joined(_zstd_pieces(raw))
        return
    openers = {'gzip': lambda file: gzip.GzipFile(fileobj=file), 'bzip2': bz2.BZ2File, 'xz': lzma.LZMAFile}
    stream = openers[compression](raw) if compression else raw
    # Not read(), which discards what it has decompressed when it meets damage.
    while data := stream.read1(CHUNK):
        yield data


def _without_byte_order_mark(source: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks without UTF-8's byte order mark."""
    head = b''
    for chunk in source:
        head += chunk
        if not _BYTE_ORDER_MARK.startswith(head):  # whole, or another beginning: no need to wait for more of it
            break
    yield head.removeprefix(_BYTE_ORDER_MARK)
    yield from source


class CountedFile(io.RawIOBase):
    """The bytes [begin, end) of an open binary file; what is read is counted and hashed.

    Args:
      file: open, and seekable.
      begin, end: the range; None is the end of the file.
      progress: called with the number of bytes of each read; an OSError of it becomes the cause of a RuntimeError.
      digest: a hash object that is updated with them.
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
            except OSError as error:  # It would be taken for damage of the file.
                raise RuntimeError('the progress of reading could not be told') from error
        if self._digest:
            self._digest.update(data)
        return len(data)


def part_chunks(path: str, file, begin: int, end: int, progress=None, digest=None) -> Iterator[bytes]:
    """The decompressed bytes of a range of an open file; of a compressed one, which cannot be cut, of the whole.

    They come CHUNK or more at a time, so that the first are enough to recognise a format by.

    Args: see `CountedFile`.
    """
    compression = compression_of(path, file.read(8) if begin == 0 else b'text')
    counted = CountedFile(file, begin, None if compression else end, progress, digest)
    return _joined(chunks(io.BufferedReader(counted, CHUNK), compression))


class Lines:
    """Lines of bytes without their line ends, from an iterator of chunks.

    Args:
      source: the chunks.
      cut: yield a line over MAX_LINE bytes in pieces, each with the same number; else TOO_LONG for one over MAX_RECORD.
      merge_blank: one blank line may stand for many that follow each other; `number` counts all of them.

    Attributes:
      number: the 1-based number of the line that was yielded last.
    """

    def __init__(self, source: Iterator[bytes], *, cut: bool = True, merge_blank: bool = False):
        self.number = 0
        self._source, self._cut, self._merge_blank = source, cut, merge_blank

    def _pieces(self, line: bytes) -> Iterator[bytes]:
        while len(line) > MAX_LINE:
            at = max(line.rfind(b' ', 0, MAX_LINE), line.rfind(b'\t', 0, MAX_LINE)) + 1
            if not at:  # No white space: cut between two characters of UTF-8.
                at = MAX_LINE
                while at > MAX_LINE - 4 and line[at] & 0xC0 == 0x80:
                    at -= 1
            yield line[:at]
            line = line[at:]
        yield line

    def __iter__(self) -> Iterator[bytes]:
        rest, inside, skipping = b'', False, False
        for chunk in _without_byte_order_mark(self._source):
            if self._merge_blank and chunk.isspace() and not (inside or skipping or rest.strip()) and b'\n' in chunk:
                self.number += chunk.count(b'\n')
                rest = chunk.rpartition(b'\n')[2]
                yield b''
                continue
            lines = chunk.split(b'\n')
            lines[0] = rest + lines[0] if rest else lines[0]
            rest = lines.pop()
            if skipping and lines:
                del lines[0]
                skipping = False
            for line in lines:
                if not inside:
                    self.number += 1
                inside = False
                if len(line) > MAX_LINE and self._cut:
                    yield from self._pieces(line)
                else:
                    yield line
            if skipping:
                rest = b''
            elif len(rest) > MAX_RECORD and not self._cut:
                self.number += 1
                rest, skipping = b'', True
                yield TOO_LONG
            elif len(rest) > MAX_LINE and self._cut:
                if not inside:
                    self.number += 1
                inside = True
                *pieces, rest = self._pieces(rest)
                yield from pieces
        if rest:
            if not inside:
                self.number += 1
            yield rest


@dataclasses.dataclass(frozen=True)
class Broken:
    """Broken input: its kind, the line (0: the whole file), and what was found there."""

    kind: str
    line: int
    detail: str


def decode(raw: bytes, number: int) -> str | Broken:
    """A line (or record) of UTF-8 as text, or what is wrong with it."""
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


def count_lines(file: BinaryIO, end: int) -> int:
    """Number of line ends in the first `end` bytes of an open file."""
    count = 0
    while end:
        data = file.read(min(end, 1 << 20))
        end, count = end - len(data), count + data.count(b'\n')
    return count
