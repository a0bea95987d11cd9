"""Files that are read whole: what cannot be read, or is no JSON, is one error that names the file; or None."""

import json
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import unusual_kind

Parsed = TypeVar('Parsed')
SETTINGS = 1 << 30  # Bytes; a file of settings or of a vocabulary is a thousand times smaller.


def read_json_object(path: epath.PathLike, fix: str) -> dict[str, Any]:
    """The object in a local JSON file, in UTF-8 with or without byte order mark.

    Args:
      path: of a file that exists.
      fix: what to do where it cannot be read, for the message.

    Raises:
      UserError: it cannot be read, or holds anything else.
    """
    return _read_json(path, dict, 'a JSON object', fix)


def read_json_list(path: epath.PathLike, fix: str) -> list[Any]:
    """The list in a JSON file; see `read_json_object`."""
    return _read_json(path, list, 'a JSON list', fix)


def _read_json(path: epath.PathLike, kind: type, expected: str, fix: str) -> Any:
    text = read_bytes(path, expected, fix, most=SETTINGS)
    if not text:
        raise UserError(str(path), 'an empty file', expected, fix)
    try:
        value = json.loads(text.decode('utf-8-sig'))
    except (ValueError, RecursionError) as error:
        reason = 'nested too deeply' if isinstance(error, RecursionError) else error
        raise UserError(str(path), f'no JSON ({reason})', expected, fix) from None
    if not isinstance(value, kind):
        raise UserError(str(path), f'a JSON {type(value).__name__}', expected, fix)
    return value


def read_json_or_none(path: pathlib.Path, parse: Callable[[Any], Parsed]) -> Parsed | None:
    """What `parse` makes of a JSON file of ours that may be gone or damaged; None where it cannot be made.

    Args:
      path: of a local file.
      parse: takes what the file should hold, and fails on anything else as Python does: for want of a key for example.
    """
    try:
        return parse(json.loads(path.read_text(encoding='utf-8')))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def read_lines(path: epath.PathLike, what: str, key: str, fix: str) -> list[str]:
    """The lines of a text file in UTF-8, with or without byte order mark, as `\\n` divides them.

    Args:
      path: of the file.
      what: is in it, such as 'words'.
      key: of the config, that names it.
      fix: what to do where it cannot be read.

    Raises:
      UserError: no such file, one that cannot be read, or no text.
    """
    if not epath.Path(path).exists():
        raise UserError(key, f'no such file {str(path)!r}', f'a file of {what}', fix)
    try:
        text = read_bytes(path, f'a file of {what}', fix, most=SETTINGS).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise UserError(str(path), f'no UTF-8 text (byte {error.start:,})', what, fix) from None
    return text.removesuffix('\n').split('\n')


def read_bytes(path: epath.PathLike, expected: str, fix: str, *, most: int | None = None) -> bytes:
    """The bytes of a file.

    Args:
      path: of a file that exists.
      expected: what it should be, for the message.
      fix: what to do where it cannot be read.
      most: bytes that it may have.

    Raises:
      UserError: a folder, a pipe or a device, more bytes, or a file that the system does not let us read.
    """
    path = pathlib.Path(path)
    kind = 'a folder' if path.is_dir() else unusual_kind(path)
    if kind:
        raise UserError(str(path), kind, expected, fix)
    try:
        size = path.stat().st_size
        if most is not None and size > most:
            raise UserError(str(path), f'a file of {size:,} bytes', f'{expected} of up to {most:,}', fix)
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(path), (error.strerror or str(error)).lower(), expected, fix) from None
