"""Reads UTF-8 text files, plain or compressed, as a whole or line by line."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.disk import reraise_machine_errors
from bertjax.files.paths import unusual_kind
from bertjax.remote.paths import user_path

T = TypeVar('T')
Line = tuple[int, str]  # (number of the line, from 1; text without the line end)


class Blank(NamedTuple):
    """A blank line or an empty record, for which the output has a row without a result.

    `kind` is the row's `skipped` field. `fields` has all fields of an empty record, or is None for plain text.
    """

    where: str
    kind: str = 'a blank line'
    fields: Mapping[str, Any] | None = None


def has_blank(value: Any) -> bool:
    """Whether a JSON value is null, NaN, a blank text, or a list that contains one of these."""
    if isinstance(value, list):
        return any(map(has_blank, value))
    return value is None or value != value or (isinstance(value, str) and not value.strip())


_MAX_NAMES, _MAX_LENGTH = 8, 24  # limits of `quote_names`: the number of names, and the characters of a name


def quote_names(names: Iterable[Any]) -> str:
    """Formats names or values for a message: the first 8, each in quotes and cut to 24 characters."""
    names = [str(name) for name in names]
    short = [name if len(name) <= _MAX_LENGTH else name[: _MAX_LENGTH - 1] + '…' for name in names[:_MAX_NAMES]]
    more = [f'and {len(names) - _MAX_NAMES:,} more'] if len(names) > _MAX_NAMES else []
    return ', '.join([*map(repr, short), *more]) or 'none'


def read_text(path: epath.PathLike) -> str:
    """Reads the whole text of a local or remote file, or of a pipe, decompressed and without a byte order mark.

    Raises:
      UserError: The file cannot be opened, is damaged, or is not UTF-8.
    """
    compression = ''
    with _open(path) as file:
        try:
            compression = streams.detect_compression(str(path), file.peek(8)[:8])
            raw = b''.join(streams.chunks(file, compression))
        except streams.DAMAGE as error:
            reraise_machine_errors(error, str(path))
            if not compression:
                raise
            found = f'a damaged {compression} file ({error})'
            raise UserError(str(path), found, 'a complete file', 'download or compress it again') from error
    try:
        return raw.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raw = error.object
        line = raw.count(b'\n' if b'\n' in raw else b'\r', 0, error.start) + 1
        found = f'the byte 0x{raw[error.start]:02x}'
        raise UserError(f'{path}:{line}', found, 'UTF-8', 'convert the file, for example with iconv') from None


def _open(path: epath.PathLike) -> io.BufferedReader:
    path = user_path(path, str(path))
    kind = unusual_kind(path)
    if kind in ('a device', 'a socket'):  # A pipe is allowed, for example `<(zcat a.gz)`.
        raise UserError(str(path), kind, 'a file', "correct the path; '-' is standard input")
    try:
        return path.open('rb')
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        found = (error.strerror or 'no such file').lower()
        raise UserError(str(path), found, 'a file', 'correct the path') from None


def peek_lines(
    lines: Iterable[Line], count: int = 1, accept: Callable[[str], object] = str.strip
) -> tuple[Iterator[Line], list[str]]:
    """Returns an iterator over all lines, and the texts of the first lines that `accept` accepts, at most `count`.

    By default, `accept` accepts each line that is not blank. Callers use the texts to detect the format of the file.
    """
    lines, read, texts = iter(lines), [], []
    for line in lines:
        read.append(line)
        if accept(line[1]):
            texts.append(line[1])
        if len(texts) == count:
            break
    return itertools.chain(read, lines), texts


def check_not_empty(
    items: Iterator[T], where: str, found: str = 'no row', expected: str = 'at least one'
) -> Iterator[T]:
    """Yields all items of a file. If all are of the type `Blank`, raises a UserError with `found` and `expected`."""
    empty = True
    for item in items:
        empty = empty and isinstance(item, Blank)
        yield item
    if empty:
        raise UserError(where, found, expected, 'check the file')


def check_text(text: str, where: str) -> str:
    """Returns `text`. Raises a UserError if it has a lone surrogate, which UTF-8 cannot encode."""
    try:
        if not text.isascii():
            text.encode('utf-8')
    except UnicodeEncodeError:
        raise UserError(where, 'a lone surrogate', 'valid Unicode text', 'correct the record') from None
    return text


def read_lines(path: epath.PathLike) -> Iterator[Line]:
    """Yields the lines of a local or remote file; see `stream_lines`.

    A .json file is read at once, because a list of records on a single line may exceed the maximum length of a line.

    Raises:
      UserError: The file cannot be opened, is damaged, or has a line that is too long or not UTF-8.
    """
    if streams.bare_suffix(str(path)) == '.json':
        yield from number_lines(read_text(path))
        return
    with _open(path) as file:
        yield from stream_lines(file, str(path))


def stream_lines(file: io.BufferedReader, where: str) -> Iterator[Line]:
    """Yields the lines of an open file or pipe, each as soon as it is read.

    Compressed content is decompressed, and a byte order mark is removed. Only \\n and \\r\\n end a line, or only \\r if
    the text has no \\n.

    Raises:
      UserError: The file is damaged, or a line is too long or not UTF-8. The message names the line.
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
                    fix = 'correct the line; rename a file with a JSON list of all records to .json'
                    expected = 'one record per line'
                raise UserError(f'{where}:{line.line}', line.detail, expected, fix)
            yield lines.number, line.removesuffix('\r')
    except streams.DAMAGE as error:
        reraise_machine_errors(error, where)
        found = f'an error while reading ({error})'
        raise UserError(f'{where}:{lines.number + 1}', found, 'a complete file', 'download it again') from error


def number_lines(text: str) -> Iterator[Line]:
    """Yields the lines of a text, as `stream_lines` does; a single empty line for an empty text."""
    end = '\n' if '\n' in text else '\r'
    for number, line in enumerate(text.removeprefix('\ufeff').removesuffix(end).split(end), 1):
        yield number, line.removesuffix('\r')
