"""Readers of UTF-8 text files, plain or compressed, as one text or line by line."""

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.paths import unusual_kind
from bertjax.remote.paths import user_path

Line = tuple[int, str]  # the number of a line, from 1, and its text without the line end


class Blank(NamedTuple):
    """A blank line or an empty record in a user's input: it gets an empty row in the predictions.

    Attributes:
      where: 'file:line'.
      what: the kind of blank, for messages.
      fields: all fields of an empty record.
    """

    where: str
    what: str = 'a blank line'
    fields: Mapping[str, Any] | None = None


_MAX_NAMES, _MAX_LENGTH = 8, 24  # limits of a quoted list: names, and characters of each


def quote_names(names: Iterable[Any]) -> str:
    """Formats names or values from a file for an error message: in quotes, shortened, and only the first of many."""
    names = [str(name) for name in names]
    quoted_names = [
        repr(name if len(name) <= _MAX_LENGTH else name[: _MAX_LENGTH - 1] + '…') for name in names[:_MAX_NAMES]
    ]
    more = [f'and {len(names) - _MAX_NAMES:,} more'] if len(names) > _MAX_NAMES else []
    return ', '.join([*quoted_names, *more]) or 'none'


def read_text(path: epath.PathLike) -> str:
    """Reads the text of a file, local or remote; see `decode_file`.

    Raises:
      UserError: The file does not exist, is damaged, or has bytes that are not UTF-8.
    """
    with _open(path) as file:
        return decode_file(file, str(path))


def _open(path: epath.PathLike) -> BinaryIO:
    path = user_path(path, str(path))
    kind = unusual_kind(path)
    if kind in ('a device', 'a socket'):  # A pipe is fine: `<(zcat a.gz)`.
        raise UserError(str(path), kind, 'a file', "correct the path; '-' is standard input")
    try:
        return path.open('rb')
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        found = (error.strerror or 'no such file').lower()
        raise UserError(str(path), found, 'a file', 'correct the path') from None


def decode_file(file: BinaryIO, where: str) -> str:
    """Reads the text of an open file or pipe, without byte order mark, and decompresses gzip, bzip2, xz or zstd.

    Args:
      file: The open file, at its start.
      where: The name of the file, for messages.

    Raises:
      UserError: The file is damaged, or has a byte that is not UTF-8; the message has its line.
    """
    raw = file.read()
    compression = streams.detect_compression(where, raw[:8])
    if compression:
        try:
            raw = b''.join(streams.chunks(io.BytesIO(raw), compression))
        except streams.DAMAGE as error:
            found = f'a damaged {compression} file ({error})'
            raise UserError(where, found, 'the whole file', 'fetch or pack it again') from error
    try:
        return raw.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = error.object.count(b'\n', 0, error.start) + 1
        found = f'the byte 0x{error.object[error.start]:02x}'
        raise UserError(f'{where}:{line}', found, 'UTF-8', 'convert the file, for example with iconv') from None


def peek_lines(lines: Iterable[Line], count: int = 1) -> tuple[Iterator[Line], list[str]]:
    """Returns all lines, and the texts of the first `count` lines that are not blank, or of all if there are fewer.

    A format can be detected by these texts without waiting for further lines.
    """
    lines, read, texts = iter(lines), [], []
    for line in lines:
        read.append(line)
        if line[1].strip():
            texts.append(line[1])
        if len(texts) == count:
            break
    return itertools.chain(read, lines), texts


def strip_blank_lines(lines: Iterable[Line], where: str, blank: str = 'refused') -> Iterator[Line]:
    """Yields the lines without blank lines at the end; other blank lines are an error, unless `blank` is 'skipped'."""
    first_blank = 0
    for number, line in lines:
        if not line.strip(' '):
            first_blank = first_blank or number
            continue
        if blank == 'refused':
            check_no_blank(first_blank, where)
        yield number, line


def check_no_blank(number: int, where: str) -> None:
    """Raises UserError if `number`, the number of a blank line before a row, is not 0."""
    if number:
        raise UserError(f'{where}:{number}', 'a blank line', 'a row', 'remove the line')


def check_text(text: str, where: str) -> str:
    """Returns a string from JSON after checking that it is text, because JSON strings may contain lone surrogates.

    Raises:
      UserError: The string has half a surrogate pair, for example because it was cut inside an emoji.
    """
    try:
        if not text.isascii():
            text.encode('utf-8')
    except UnicodeEncodeError:
        raise UserError(where, 'half a surrogate pair', 'text', 'correct the record') from None
    return text


def read_lines(path: epath.PathLike) -> Iterator[Line]:
    """Yields the lines of a file, local or remote; see `stream_lines`.

    Raises:
      UserError: The file does not exist, is damaged, or has bytes that are not UTF-8.
    """
    with _open(path) as file:
        yield from stream_lines(io.BufferedReader(streams.CountedFile(file), streams.CHUNK), str(path))


def stream_lines(file: io.BufferedReader, where: str) -> Iterator[Line]:
    """Yields the lines of an open file or pipe, each as soon as it is read; only \\n and \\r\\n end a line.

    Decompresses gzip, bzip2, xz or zstd, and removes a byte order mark.

    Args:
      file: The open file, at its start.
      where: The name of the file, for messages.

    Raises:
      UserError: The file is damaged, or has bytes that are not UTF-8; the message has the line.
    """
    lines = streams.Lines(iter(()))
    try:
        compression = streams.detect_compression(where, file.peek(8)[:8])
        lines = streams.Lines(streams.chunks(file, compression), cut=False)
        for raw in lines:
            line = streams.decode(raw, lines.number)
            if isinstance(line, streams.Broken):
                expected, fix = 'UTF-8 text', 'correct the line, or convert the file, for example with iconv'
                if raw is streams.TOO_LONG:
                    expected, fix = 'one record per line', 'correct the line; a list of all records is a .json'
                raise UserError(f'{where}:{line.line}', line.detail, expected, fix)
            yield lines.number, line.removesuffix('\r')
    except streams.DAMAGE as error:
        found = f'a file that cannot be read on ({error})'
        raise UserError(f'{where}:{lines.number + 1}', found, 'a whole file', 'fetch it again') from error


def number_lines(text: str) -> Iterator[Line]:
    """Yields the lines of a text as `stream_lines` does; a text that ends with a line end has a last, empty line."""
    for number, line in enumerate(text.removeprefix('\ufeff').split('\n'), 1):
        yield number, line.removesuffix('\r')
