"""Readers of JSON lines and of .json files. Each row is a JSON object."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Line, check_text, peek_lines

_LIST = re.compile(r'\s*\[\s*(\{\s*("|$)|$)')  # the first line of a list of objects


def json_records(lines: Iterable[Line], where: str) -> Iterator[Record]:
    """Yields the records ('where[key]', object) of a .json file: the elements of a list, or the values of an object.

    A file with several lines, the first of which is a JSON object, is read as JSON lines: `datasets` and pandas write
    such .json files. An object without nested lists or objects is a single record.

    Raises:
      UserError: The file has another form, or contains an element that is not an object.
    """
    lines, first_lines = peek_lines(lines, 2)
    if len(first_lines) == 2 and is_object(first_lines[0]):
        yield from objects_of_lines(lines, where)
        return
    try:
        root = json.loads('\n'.join(line for _, line in lines))
    except (ValueError, RecursionError) as error:
        fix = 'correct the file; if it has one object per line, rename it to .jsonl'
        raise UserError(f'{where}:{getattr(error, "lineno", 1)}', f'invalid JSON ({error})', 'JSON', fix) from None
    if not isinstance(root, list | dict):
        raise UserError(where, f'a JSON {type(root).__name__}', 'a list of objects', 'check the file')
    if isinstance(root, dict) and root and not any(isinstance(value, list | dict) for value in root.values()):
        yield Record(f'{where}:1', root)
        return
    for key, record in enumerate(root) if isinstance(root, list) else root.items():
        location = f'{where}[{key!r}]'
        fix = 'correct the record, or rename a file with a single record to .jsonl'
        yield Record(location, _check_object(record, location, fix))


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def begins_objects(line: str) -> bool:
    """Whether `line`, the first line of a text, is a JSON object or begins a JSON list of objects."""
    return _LIST.match(line) is not None or is_object(line)


def objects_of_lines(lines: Iterable[Line], where: str) -> Iterator[Record]:
    """Yields ('where:line', object) for each line that is not blank.

    Raises:
      UserError: A line is not a JSON object.
    """
    for number, line in lines:
        if not line.strip():
            continue
        location = f'{where}:{number}'
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            found = f'invalid JSON ({error})'
            raise UserError(location, found, 'one JSON object per line', 'correct the line') from None
        yield Record(location, _check_object(record, location))


def _check_object(record: Any, where: str, fix: str = 'correct the record') -> dict[str, Any]:
    if not isinstance(record, dict):
        raise UserError(where, f'a JSON {type(record).__name__}', 'an object with named fields', fix)
    return record


def convert_to_text(value: Any, where: str, *, lists: str = 'join', key: str = '') -> str | None:
    """Converts a JSON value to text, and null and NaN to None. Numbers and booleans are written as in JSON.

    Args:
      where, key: For messages, the location of the field and the config key that names the field; '' for no key.
      lists: 'join' to join a list of strings with spaces, 'json' to convert any list to JSON text, or 'refuse'.

    Raises:
      UserError: The value is an object, a list that is not allowed, or a string that `check_text` rejects.
    """
    if lists == 'json' and isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    elif lists == 'join' and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ' '.join(value)
    if isinstance(value, dict | list):
        found = f'a JSON {type(value).__name__}'
        allowed_lists = {'join': ', a number or a list of strings', 'json': ', a number or a list'}
        expected = 'a string' + allowed_lists.get(lists, ' or a number')
        raise UserError(where, found, expected, f'name another field in {key}' if key else 'correct the record')
    if value is None or value != value:  # pandas writes NaN for a missing text
        return None
    return check_text(value, where) if isinstance(value, str) else json.dumps(value)
