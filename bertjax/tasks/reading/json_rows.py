"""JSON objects as rows: from JSON lines and from JSON."""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Line, checked_text


def json_records(lines: Iterable[Line], where: str) -> Iterator[Record]:
    """The objects of a .json file: those of one JSON value, or of as many as there are lines, as `datasets` and pandas
    write them too.

    Raises:
      UserError: see `objects_of_text` and `objects_of_lines`.
    """
    lines = list(lines)
    filled = list(itertools.islice((line for _, line in lines if line.strip()), 2))
    if len(filled) == 2 and is_object(filled[0]):
        return objects_of_lines(lines, where)
    return objects_of_text('\n'.join(line for _, line in lines), where)


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def objects_of_lines(lines: Iterable[Line], where: str) -> Iterator[Record]:
    """('where:line', object) of numbered lines, each of which is an object; blank ones mean nothing.

    Raises:
      UserError: a line that is anything else.
    """
    for number, line in lines:
        if not line.strip():
            continue
        here = f'{where}:{number}'
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(here, f'wrong JSON ({error})', 'a JSON object a line', 'correct the line') from None
        yield Record(here, _checked(record, here))


def objects_of_text(text: str, where: str) -> Iterator[Record]:
    """('where[key]', object) of a JSON list of objects, or of an object of objects.

    Raises:
      UserError: anything else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        fix = 'correct the file; one with an object a line is named .jsonl'
        raise UserError(f'{where}:{getattr(error, "lineno", 1)}', f'wrong JSON ({error})', 'JSON', fix) from None
    if not isinstance(found, list | dict):
        raise UserError(where, f'a JSON {type(found).__name__}', 'a list of objects', 'check the file')
    for key, record in enumerate(found) if isinstance(found, list) else found.items():
        here = f'{where}[{key!r}]'
        yield Record(here, _checked(record, here))


def _checked(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise UserError(where, f'a JSON {type(record).__name__}', 'an object with named fields', 'correct the record')
    return record


def as_text(value: Any, where: str, *, joined: bool = True, kept: bool = False, key: str = 'config.task') -> str | None:
    """A JSON value as text: numbers and booleans as JSON writes them, a list of strings joined by spaces, null as None.

    Args:
      value: of a field.
      where: its place.
      joined: whether a list of strings is accepted.
      kept: whether a list is accepted, and stays one: as JSON.
      key: of the config that names the field, for messages.

    Raises:
      UserError: an object, any other list, or a string that is not text (see `checked_text`).
    """
    if kept and isinstance(value, list):
        return checked_text(json.dumps(value, ensure_ascii=False), where)
    if joined and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ' '.join(value)
    if isinstance(value, dict | list):
        found = f'a JSON {type(value).__name__}'
        expected = 'a string, a number or a list of strings' if joined else 'a string or a number'
        raise UserError(where, found, expected, f'name another field in {key}')
    if value is None:
        return None
    if not isinstance(value, str):
        return json.dumps(value)
    return checked_text(value, where)
