"""Parses a line of JSON that must be an object."""

import json
from collections.abc import Mapping
from typing import Any

from bertjax.errors import printable
from bertjax.files.streams import Broken


def parse_json_object(text: str, number: int) -> dict[str, Any] | Broken:
    """Parses line `number` of a file and returns its object, or a `Broken` that describes the error."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Broken('wrong JSON', number, str(error))
    if not isinstance(record, dict):
        return Broken('wrong JSON', number, f'a {type(record).__name__} instead of an object')
    return record


def list_fields(record: Mapping[str, Any]) -> str:
    """Returns the first few field names of an object, for a message about a missing field."""
    return ', '.join(printable(key[:40]) for key in list(record)[:8]) or 'no field'
