"""What a program of one's own gives to a model's methods: one text or several, and values with ranges."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import jax
import numpy as np

from bertjax.config.ranges import Range, format_value
from bertjax.config.schema import keys_of
from bertjax.config.using import USING
from bertjax.errors import UserError
from bertjax.text.special import replace_surrogates

Texts = str | Sequence[str]


def several(texts: Texts, name: str = 'texts') -> list[str]:
    """One text or several as a list, each with no half of a surrogate pair.

    Raises:
      UserError: something else; names the first.
    """
    if isinstance(texts, str):
        texts = [texts]
    check_list(name, texts, 'a text or a list of texts')
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f'{name}[{number}]', format_value(text), 'a text', "give '' for none")
    return [replace_surrogates(text) for text in texts]


def check_list(name: str, values: Any, expected: str = 'a list') -> None:
    """Refuses anything but a list, a tuple, an array of one dimension or a column of a table.

    Raises:
      UserError: a number, a set, a mapping, a generator, a table or an array of another dimension.
    """
    is_list = isinstance(values, Sized) and hasattr(values, '__getitem__') and not isinstance(values, Mapping)
    if not is_list or getattr(values, 'ndim', 1) != 1:
        raise UserError(name, format_value(values), expected, 'make a list of it')


def like(asked: Any, results: list[Any]) -> Any:
    """One result where one text was asked for."""
    return results[0] if isinstance(asked, str) else results


def check_count(name: str, beside: Sequence[Any] | None, texts: Sequence[Any]) -> None:
    """Refuses second texts that are not as many as the first, or no list."""
    if beside is None:
        return
    check_list(name, beside)
    if len(beside) != len(texts):
        raise UserError(name, f'{len(beside)} for {len(texts)}', 'as many as there are texts', 'give one for each')


def plain(value: Any) -> Any:
    """A value or array of numpy or JAX as Python's own; lists, ranges and arrays become tuples."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple | range) else value


def check_value(argument: str, value: Any, allowed: Range, fix: str) -> Any:
    """An argument as Python's own value.

    Raises:
      UserError: a value outside its range.
    """
    value = plain(value)
    if not allowed.holds(value):
        raise UserError(argument, format_value(value), allowed.words, fix)
    return value


def check_values(verb: str, **values: Any) -> dict[str, Any]:
    """Arguments as Python's own values, by name; refuses what the command line refuses as config.VERB.NAME.

    Args:
      verb: whose keys have the ranges.
      **values: argument=(NAME, value).

    Raises:
      UserError: the first value outside its range.
    """
    checked, keys = {}, keys_of(USING[verb])
    for argument, (name, value) in values.items():
        key = keys[f'{verb}.{name}']
        checked[argument] = check_value(argument, value, key.allowed, f'for example {argument}={key.default!r}')
    return checked
