"""Reads small files into memory.

If a file cannot be read or parsed, `read_json_or_none` returns None, and the other functions raise a UserError.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import unusual_kind

Parsed = TypeVar('Parsed')
MAX_SETTINGS_BYTES = 1 << 30  # a larger file is an error; real settings and vocabularies are far smaller


def read_json_object(path: epath.PathLike, fix: str) -> dict[str, Any]:
    """Reads the object in a local JSON file, in UTF-8 with or without a byte order mark.

    Raises:
      UserError: The file cannot be read, or does not contain a JSON object.
    """
    return _read_json(path, dict, 'a JSON object', fix)


def read_json_list(path: epath.PathLike, fix: str) -> list[Any]:
    """Reads the list in a JSON file; see `read_json_object`."""
    return _read_json(path, list, 'a JSON list', fix)


def _read_json(path: epath.PathLike, kind: type, expected: str, fix: str) -> Any:
    text = read_bytes(path, expected, fix, max_bytes=MAX_SETTINGS_BYTES)
    try:
        value = json.loads(text.decode('utf-8-sig'))
    except (ValueError, RecursionError) as error:
        reason = 'nested too deeply' if isinstance(error, RecursionError) else error
        raise UserError(str(path), f'no JSON ({reason})', expected, fix) from None
    if not isinstance(value, kind):
        raise UserError(str(path), f'a JSON {type(value).__name__}', expected, fix)
    return value


def read_json_or_none(path: pathlib.Path, parse: Callable[[Any], Parsed]) -> Parsed | None:
    """Parses a JSON file that bertjax wrote. Returns None if the file is missing or damaged.

    A KeyError, ValueError or similar that `parse` raises also counts as damage.
    """
    try:
        return parse(json.loads(path.read_text(encoding='utf-8')))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def read_lines(path: epath.PathLike, content: str, key: str, fix: str) -> list[str]:
    """Reads the lines of a text file in UTF-8, with or without a byte order mark.

    Only `\\n` ends a line, or only `\\r` if the text has no `\\n`. `content` (such as 'words'), `key` (the config key
    that names the file) and `fix` are used only in error messages.

    Raises:
      UserError: The file is missing, cannot be read, or is not UTF-8.
    """
    if not epath.Path(path).exists():
        raise UserError(key, f'no such file {str(path)!r}', f'a file of {content}', fix)
    text = read_text(path, f'a file of {content}', fix)
    end = '\n' if '\n' in text else '\r'
    return text.removesuffix(end).split(end)


def read_text(path: epath.PathLike, expected: str, fix: str) -> str:
    """Reads a text file in UTF-8, with or without a byte order mark.

    Raises:
      UserError: The file cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, expected, fix, max_bytes=MAX_SETTINGS_BYTES).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise UserError(str(path), f'no UTF-8 text (byte {error.start:,})', expected, fix) from None


def read_bytes(path: epath.PathLike, expected: str, fix: str, *, max_bytes: int | None = None) -> bytes:
    """Reads the bytes of a file.

    Raises:
      UserError: The path is a folder, pipe, device or socket, or the file is unreadable, empty or longer than
        `max_bytes`.
    """
    path = pathlib.Path(path)
    kind = 'a folder' if path.is_dir() else unusual_kind(path)
    if kind:
        raise UserError(str(path), kind, expected, fix)
    try:
        size = path.stat().st_size
        if max_bytes is not None and size > max_bytes:
            raise UserError(str(path), f'a file of {size:,} bytes', f'{expected} of up to {max_bytes:,} bytes', fix)
        data = path.read_bytes()
    except OSError as error:
        raise UserError(str(path), (error.strerror or str(error)).lower(), expected, fix) from None
    if not data:
        raise UserError(str(path), 'an empty file', expected, fix)
    return data
