"""Bytes from files: local or remote, plain or compressed, line by line in bounded memory.

Damage is an exception of `DAMAGE` at the place where it shows, so that what came before it is kept.
"""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator

import zstandard
from etils import epath

CHUNK = 1 << 18  # Bytes asked for at once: large enough to be fast, small enough to be nothing.
MAX_LINE = 1 << 20  # A longer line of text is read in pieces, cut at white space.
MAX_RECORD = 1 << 26  # A longer line of JSON, which cannot be cut, is dropped.

TOO_LONG = b'\0 too long'  # Stands for a line over MAX_RECORD; compare by identity.
_MAGIC = {b'\x1f\x8b': 'gzip', b'BZh': 'bzip2', b'\xfd7zXZ\x00': 'xz', b'\x28\xb5\x2f\xfd': 'zstd'}
_SUFFIXES = {'.gz': 'gzip', '.bz2': 'bzip2', '.xz': 'xz', '.zst': 'zstd', '.zstd': 'zstd'}


class DamagedFileError(Exception):
    """The compressed file is truncated or is no such file."""


DAMAGE = (DamagedFileError, EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def local(path: epath.PathLike) -> bool:
    """Whether the path lies in this machine's file system."""
    return '://' not in os.fspath(path)


def compression_of(path: str, head: bytes) -> str:
    """'gzip', 'bzip2', 'xz', 'zstd' or '' for a file that begins with `head`; content decides, then the name."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return _SUFFIXES.get(os.path.splitext(path)[1].lower(), '') if head else ''


def packed(path: str) -> bool:
    """Whether the name says that the file is compressed: for estimates only."""
    return os.path.splitext(path)[1].lower() in _SUFFIXES


def bare_suffix(path: str) -> str:
    """The suffix of the name without that of its compression: 'a.jsonl.gz' -> '.jsonl'."""
    stem, suffix = os.path.splitext(path)
    return (os.path.splitext(stem)[1] if suffix.lower() in _SUFFIXES else suffix).lower()


def _zstd_chunks(raw: io.BufferedIOBase) -> Iterator[bytes]:
    """As other decompressors, but `zstandard.stream_reader` keeps silent about a truncated file: frames by hand."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    while data := raw.read(CHUNK // 2):
        while data:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b''
            frame = None if frame.eof else frame
    if frame is not None:
        raise DamagedFileError('ends inside a zstd frame')


def chunks(raw: io.BufferedIOBase, compression: str) -> Iterator[bytes]:
    """The decompressed bytes of an open file; all that can be had before it raises one of DAMAGE."""
    if compression == 'zstd':
        yield from _zstd_chunks(raw)
        return
    openers = {'gzip': lambda file: gzip.GzipFile(fileobj=file), 'bzip2': bz2.BZ2File, 'xz': lzma.LZMAFile}
    stream = openers[compression](raw) if compression else raw
    # read1 and not read: read throws away what it has decompressed when it meets the damage.
    while data := stream.read1(CHUNK):
        yield data


def _without_mark(source: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks without UTF-8's byte order mark."""
    head = b''
    for chunk in source:
        head += chunk
        if len(head) >= 3:
            break
    yield head.removeprefix(b'\xef\xbb\xbf')
    yield from source


class CountedFile(io.RawIOBase):
    """A range of an open binary file that tells `progress(bytes)` and a hash what passes."""

    def __init__(self, file, begin: int, end: int | None, progress, digest):
        super().__init__()
        self._file, self._left, self._progress, self._digest = (
            file,
            None if end is None else end - begin,
            progress,
            digest,
        )
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
            self._progress(len(data))
        if self._digest:
            self._digest.update(data)
        return len(data)


class Lines:
    """Lines of bytes without their ends, from an iterator of chunks.

    `number` is the 1-based number of the line given last. With `cut`, a line over MAX_LINE bytes comes in pieces, each
    with the same number; else one over MAX_RECORD comes as the object TOO_LONG.
    """

    def __init__(self, source: Iterator[bytes], *, cut: bool = True):
        self.number = 0
        self._source, self._cut = source, cut

    def _pieces(self, line: bytes) -> Iterator[bytes]:
        while len(line) > MAX_LINE:
            at = max(line.rfind(b' ', 0, MAX_LINE), line.rfind(b'\t', 0, MAX_LINE)) + 1
            if not at:  # No white space: between two characters of UTF-8.
                at = MAX_LINE
                while at > MAX_LINE - 4 and line[at] & 0xC0 == 0x80:
                    at -= 1
            yield line[:at]
            line = line[at:]
        yield line

    def __iter__(self) -> Iterator[bytes]:
        rest, inside, skipping = b'', False, False
        for chunk in _without_mark(self._source):
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
