"""A line of JSON as the object that it must be, or what is wrong with it."""

import json
from collections.abc import Mapping
from typing import Any

from bertjax.errors import printable
from bertjax.files.streams import Broken


def json_object(text: str, number: int) -> dict[str, Any] | Broken:
    """The object of a line, which is the one of this `number`."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Broken('wrong JSON', number, str(error))
    if not isinstance(record, dict):
        return Broken('wrong JSON', number, f'a {type(record).__name__} instead of an object')
    return record


def names_in(record: Mapping[str, Any]) -> str:
    """The first fields of an object by name, for a message about one that is not among them."""
    return ', '.join(printable(key[:40]) for key in list(record)[:8]) or 'no field'
