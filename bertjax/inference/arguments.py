"""Checks of the arguments of `api.Bert`: one text or several, and values with ranges."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import jax
import numpy as np

from bertjax.config.inference import INFERENCE_KEYS
from bertjax.config.ranges import Range, format_value
from bertjax.config.schema import keys_of
from bertjax.errors import UserError
from bertjax.text.special import replace_surrogates

Texts = str | Sequence[str]


def as_text_list(texts: Texts, name: str = 'texts') -> list[str]:
    """Returns one text or several as a list; lone surrogates are replaced in each.

    Raises:
      UserError: The argument is not a text or a list of texts; the message names the first wrong entry.
    """
    if isinstance(texts, str):
        texts = [texts]
    check_list(name, texts, 'a text or a list of texts')
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f'{name}[{number}]', format_value(text), 'a text', "give '' for none")
    return [replace_surrogates(text) for text in texts]


def check_list(name: str, values: Any, expected: str = 'a list') -> None:
    """Checks that `values` is a list, a tuple, a one-dimensional array or a column of a table.

    Raises:
      UserError: It is a number, a set, a mapping, a generator, a table or an array of another dimension.
    """
    is_list = isinstance(values, Sized) and hasattr(values, '__getitem__') and not isinstance(values, Mapping)
    if not is_list or getattr(values, 'ndim', 1) != 1:
        raise UserError(name, format_value(values), expected, 'make a list of it')


def match_input(texts: Any, results: list[Any]) -> Any:
    """Returns the only result if `texts` is a single text, else all results."""
    return results[0] if isinstance(texts, str) else results


def check_count(name: str, values: Sequence[Any] | None, texts: Sequence[Any]) -> None:
    """Checks that `values`, if given, is a list with one entry per text.

    Raises:
      UserError: It is not a list, or has another length.
    """
    if values is None:
        return
    check_list(name, values)
    if len(values) != len(texts):
        raise UserError(name, f'{len(values)} for {len(texts)}', 'as many as there are texts', 'give one for each')


def to_python(value: Any) -> Any:
    """Converts a NumPy or JAX value to a Python value; lists, ranges and arrays become tuples."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(to_python, value)) if isinstance(value, list | tuple | range) else value


def check_value(argument: str, value: Any, allowed: Range, fix: str) -> Any:
    """Returns an argument as a Python value.

    Raises:
      UserError: The value is outside its range.
    """
    value = to_python(value)
    if not allowed.holds(value):
        raise UserError(argument, format_value(value), allowed.words, fix)
    return value


def check_values(verb: str, **values: Any) -> dict[str, Any]:
    """Returns arguments as Python values by name, checked against the ranges of config.VERB.NAME.

    Args:
      verb: The verb whose config keys have the ranges.
      **values: argument=(NAME, value).

    Raises:
      UserError: A value is outside its range.
    """
    checked, keys = {}, keys_of(INFERENCE_KEYS[verb])
    for argument, (name, value) in values.items():
        key = keys[f'{verb}.{name}']
        checked[argument] = check_value(argument, value, key.allowed, f'for example {argument}={key.default!r}')
    return checked
