"""What a program of one's own gives to a model's methods: one text or several, and values with ranges."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.ranges import shown
from bertjax.recipe_ranges import OF_VERB
from bertjax.text.special import well_formed

Texts = str | Sequence[str]


def several(texts: Texts, name: str = 'texts') -> list[str]:
    """One text or several as a list, each with no half of a surrogate pair.

    Raises:
      UserError: something else; names the first.
    """
    if isinstance(texts, str):
        texts = [texts]
    elif not isinstance(texts, Sized) or not hasattr(texts, '__getitem__'):
        raise UserError(name, shown(texts), 'a text or a list of texts', 'make a list of it')
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f'{name}[{number}]', shown(text), 'a text', "give '' for none")
    return [well_formed(text) for text in texts]


def like(asked: Any, results: list[Any]) -> Any:
    """One result where one text was asked for."""
    return results[0] if isinstance(asked, str) else results


def check_count(name: str, beside: Sequence[Any] | None, texts: Sequence[Any]) -> None:
    """Refuses second texts that are not as many as the first."""
    if beside is not None and len(beside) != len(texts):
        raise UserError(name, f'{len(beside)} for {len(texts)}', 'as many as there are texts', 'give one for each')


def plain(value: Any) -> Any:
    """A value of numpy as Python's own."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


def check_values(verb: str, **values: Any) -> None:
    """Refuses what the command line refuses as config.VERB.NAME: {argument: (NAME, value)}.

    Raises:
      UserError: the first value outside its range.
    """
    for argument, (name, value) in values.items():
        allowed, example = OF_VERB[verb][name]
        value = plain(value)
        if not allowed.holds(value):
            raise UserError(argument, shown(value), allowed.words, f'for example {argument}={example!r}')
