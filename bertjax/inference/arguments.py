"""Checks the arguments of `api.Bert`: texts and lists of texts, and values with ranges."""

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
    """Returns a list of texts without lone surrogates. Raises a UserError that names an entry that is not a text."""
    if isinstance(texts, str):
        texts = [texts]
    check_list(name, texts, 'a text or a list of texts')
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f'{name}[{number}]', format_value(text), 'a text', "pass '' for an empty text")
    return [replace_surrogates(text) for text in texts]


def check_list(name: str, values: Any, expected: str = 'a list') -> None:
    """Raises a UserError unless `values` is a list, a one-dimensional array, a column of a table or similar."""
    is_list = isinstance(values, Sized) and hasattr(values, '__getitem__') and not isinstance(values, Mapping)
    if not is_list or getattr(values, 'ndim', 1) != 1:
        raise UserError(name, format_value(values), expected, 'convert it to a list')


def match_input(texts: Any, results: list[Any]) -> Any:
    """Returns the first result if `texts` is a single text, else all results."""
    return results[0] if isinstance(texts, str) else results


def check_count(name: str, values: Sequence[Any], texts: Sequence[Any]) -> None:
    """Raises a UserError unless `values` is a list with one entry per text."""
    check_list(name, values)
    if len(values) != len(texts):
        raise UserError(name, f'{len(values)} entries for {len(texts)} texts', 'one for each text', 'correct the list')


def as_pair_lists(texts: Texts, pairs: Texts | None) -> tuple[list[str], list[str] | None]:
    """Returns `as_text_list` of both. Raises a UserError unless `pairs` is None or has one text for each text."""
    first_texts, second_texts = as_text_list(texts), None if pairs is None else as_text_list(pairs, 'pairs')
    if second_texts is not None:
        check_count('pairs', second_texts, first_texts)
    return first_texts, second_texts


def to_python(value: Any) -> Any:
    """Converts a NumPy or JAX value to a Python value. Lists, ranges and arrays become tuples."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(map(to_python, value)) if isinstance(value, list | tuple | range) else value


def check_value(argument: str, value: Any, allowed: Range, fix: str) -> Any:
    """Converts an argument to a Python value. Raises a UserError if the value is outside the range `allowed`."""
    value = to_python(value)
    if not allowed.contains(value):
        raise UserError(argument, format_value(value), allowed.words, fix)
    return value


def check_values(verb: str, values: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Converts arguments to Python values. Raises a UserError for a value outside the range of its config key.

    Args:
      values: {argument: value}. The config key of an argument is config.VERB.ARGUMENT.
      **names: {argument: NAME}, for arguments whose config key is config.VERB.NAME instead.
    """
    checked, keys = {}, keys_of(INFERENCE_KEYS[verb])
    for argument, value in values.items():
        key = keys[f'{verb}.{names.get(argument, argument)}']
        checked[argument] = check_value(argument, value, key.allowed, f'for example {argument}={key.default!r}')
    return checked
