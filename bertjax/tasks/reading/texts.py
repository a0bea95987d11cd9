"""Text files, whole or line by line: UTF-8, plain or compressed."""

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.paths import unusual_kind
from bertjax.remote.paths import user_path

Line = tuple[int, str]  # its number from 1, and its text without the line end


class Blank(NamedTuple):
    """A blank line of a user's input, or an empty record: it has no prediction, but a place among them.

    Attributes:
      where: 'file:line'.
      what: what it is.
      fields: all that its row has.
    """

    where: str
    what: str = 'a blank line'
    fields: Mapping[str, Any] | None = None


_SHOWN, _LONG = 8, 24  # so many names of a list are shown, and so many characters of each


def quoted(names: Iterable[Any]) -> str:
    """Names or values from a file as an error shows them: in quotes, short, and only the first of many."""
    names = [str(name) for name in names]
    shown = [repr(name if len(name) <= _LONG else name[: _LONG - 1] + '…') for name in names[:_SHOWN]]
    more = [f'and {len(names) - _SHOWN:,} more'] if len(names) > _SHOWN else []
    return ', '.join([*shown, *more]) or 'none'


def read_text(path: epath.PathLike) -> str:
    """The text of a file, local or remote; see `decoded`.

    Raises:
      UserError: no such file, damage, or bytes that are not UTF-8.
    """
    with _opened(path) as file:
        return decoded(file, str(path))


def _opened(path: epath.PathLike) -> BinaryIO:
    path = user_path(path, str(path))
    kind = unusual_kind(path)
    if kind in ('a device', 'a socket'):  # A pipe is fine: `<(zcat a.gz)`.
        raise UserError(str(path), kind, 'a file', "correct the path; '-' is standard input")
    try:
        return path.open('rb')
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        found = (error.strerror or 'no such file').lower()
        raise UserError(str(path), found, 'a file', 'correct the path') from None


def decoded(file: BinaryIO, where: str) -> str:
    """The text of an open file or pipe, decompressed if necessary (gzip, bzip2, xz, zstd), without byte order mark.

    Args:
      file: open, at its beginning.
      where: its name, for messages.

    Raises:
      UserError: damage, or a byte that is not UTF-8, with its line.
    """
    raw = file.read()
    compression = streams.compression_of(where, raw[:8])
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


def peeked(lines: Iterable[Line], count: int = 1) -> tuple[Iterator[Line], list[str]]:
    """All lines, and the texts of the first `count` that are not blank (fewer where there are fewer): a format is told
    by these without waiting for more."""
    lines, seen, filled = iter(lines), [], []
    for line in lines:
        seen.append(line)
        if line[1].strip():
            filled.append(line[1])
        if len(filled) == count:
            break
    return itertools.chain(seen, lines), filled


def without_blanks(lines: Iterable[Line], where: str, blank: str = 'refused') -> Iterator[Line]:
    """The lines without the blank ones at the end; a blank line elsewhere is an error, unless it is 'skipped'."""
    found = 0
    for number, line in lines:
        if not line.strip(' '):
            found = found or number
            continue
        if blank == 'refused':
            check_no_blank(found, where)
        yield number, line


def check_no_blank(number: int, where: str) -> None:
    """Raises UserError if there is a blank line before a row: the `number` of one, or 0."""
    if number:
        raise UserError(f'{where}:{number}', 'a blank line', 'a row', 'remove the line')


def checked_text(text: str, where: str) -> str:
    """A string from JSON, checked: JSON strings may hold what is not text and cannot be written to a file.

    Raises:
      UserError: half a surrogate pair, as in a text that was cut inside an emoji.
    """
    try:
        if not text.isascii():
            text.encode('utf-8')
    except UnicodeEncodeError:
        raise UserError(where, 'half a surrogate pair', 'text', 'correct the record') from None
    return text


def read_lines(path: epath.PathLike) -> Iterator[Line]:
    """The lines of a file, local or remote; see `stream_lines`.

    Raises:
      UserError: no such file, damage, or bytes that are not UTF-8.
    """
    with _opened(path) as file:
        yield from stream_lines(io.BufferedReader(streams.CountedFile(file), streams.CHUNK), str(path))


def stream_lines(file: io.BufferedReader, where: str) -> Iterator[Line]:
    """The lines of an open file or pipe, each as soon as it is there; only \\n and \\r\\n end a line.

    Decompressed if necessary (gzip, bzip2, xz, zstd), without byte order mark.

    Args:
      file: open, at its beginning.
      where: its name, for messages.

    Raises:
      UserError: damage, or bytes that are not UTF-8, with the line.
    """
    lines = streams.Lines(iter(()))
    try:
        compression = streams.compression_of(where, file.peek(8)[:8])
        lines = streams.Lines(streams.chunks(file, compression), cut=False)
        for raw in lines:
            line = streams.decode(raw, lines.number)
            if isinstance(line, streams.Broken):
                expected, fix = 'UTF-8 text', 'correct the line, or convert the file, for example with iconv'
                if raw is streams.TOO_LONG:
                    expected, fix = 'a record a line', 'correct the line; a list of all records is a .json'
                raise UserError(f'{where}:{line.line}', line.detail, expected, fix)
            yield lines.number, line.removesuffix('\r')
    except streams.DAMAGE as error:
        found = f'a file that cannot be read on ({error})'
        raise UserError(f'{where}:{lines.number + 1}', found, 'a whole file', 'fetch it again') from error


def number_lines(text: str) -> Iterator[Line]:
    """The lines of a text, as of `stream_lines`; its end is one more, empty, after a line end."""
    for number, line in enumerate(text.removeprefix('\ufeff').split('\n'), 1):
        yield number, line.removesuffix('\r')
