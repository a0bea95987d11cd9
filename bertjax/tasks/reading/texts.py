"""Whole text files: UTF-8, plain or compressed."""

import io
from typing import BinaryIO

from etils import epath

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.files.paths import unusual_kind, user_path


def read_text(path: epath.PathLike) -> str:
    """The text of a file, local or remote; see `decoded`.

    Raises:
      UserError: no such file, damage, or bytes that are not UTF-8.
    """
    path = user_path(path, str(path))
    kind = unusual_kind(path)
    if kind in ('a device', 'a socket'):  # A pipe is fine: `<(zcat a.gz)`.
        raise UserError(str(path), kind, 'a file', "correct the path; '-' is standard input")
    try:
        with path.open('rb') as file:
            return decoded(file, str(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UserError(str(path), (error.strerror or 'no such file').lower(), 'a file', 'correct the path') from None


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


def checked_text(text: str, where: str) -> str:
    """A string from JSON, checked: JSON strings may hold what is not text and cannot be written to a file.

    Raises:
      UserError: half a surrogate pair, as in a text that was cut inside an emoji.
    """
    try:
        text.encode('utf-8')
    except UnicodeEncodeError:
        raise UserError(where, 'half a surrogate pair', 'text', 'correct the record') from None
    return text
