"""Ranges of config values. A range has a predicate, and a description of the allowed values for messages."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from bertjax.errors import UserError

# The upper limit of sizes, such as widths and batches: larger than any size in use, but far from an overflow.
MANY = 2**20
COUNT = 2**31 - 1  # the upper limit of counts, such as steps, which are int32 in a checkpoint


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a config key may have.

    Attributes:
      words: A description of the values, such as 'a whole number from 1 to 100'.
      contains: A function that takes a value of any type, and returns whether the value is allowed.
    """

    words: str
    contains: Callable[[Any], bool]


def integer(minimum: int, maximum: int) -> Range:
    """Allows ints from `minimum` to `maximum`, but not True or 2.0."""
    return Range(
        f'a whole number from {minimum:,} to {maximum:,}',
        lambda value: isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum,
    )


def number(minimum: float, maximum: float, *, above: bool = False, below: bool = False) -> Range:
    """Allows finite numbers from `minimum` to `maximum`; `above` excludes `minimum`, and `below` excludes `maximum`."""
    start = f'above {minimum:,g},' if above else f'from {minimum:,g}'
    end = f'{"" if above and below else "to "}{"below " * below}{maximum:,g}'

    def contains(value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        is_end = (above and value == minimum) or (below and value == maximum)
        return minimum <= value <= maximum and not is_end  # nan fails the comparison

    return Range(f'a number {start} {end}', contains)


FLAG = Range('True or False', lambda value: isinstance(value, bool))


def one_of(names: Iterable[str]) -> Range:
    """Allows the words in `names`."""
    names = tuple(names)
    return Range(
        'one of ' + ', '.join(name or "''" for name in names), lambda value: isinstance(value, str) and value in names
    )


def text(*, empty: bool = True) -> Range:
    """Allows text that can be a path or a name; '' is allowed if `empty` is true."""

    def contains(value: Any) -> bool:
        if not isinstance(value, str) or not (empty or value.strip()):
            return False
        # A path cannot contain a NUL, and UTF-8 cannot encode a lone surrogate.
        return '\0' not in value and not any('\ud800' <= letter <= '\udfff' for letter in value)

    return Range('text' if empty else 'text that is not empty', contains)


def word(pattern: str, words: str) -> Range:
    """Allows text that fully matches the regular expression `pattern`, which `words` describes."""
    return Range(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def list_of(items: Range) -> Range:
    """Allows lists whose entries are all in the range `items`."""
    return Range(
        f'a list, each entry {items.words}',
        lambda value: isinstance(value, list | tuple) and all(map(items.contains, value)),
    )


def either(first: Range, second: Range) -> Range:
    """Allows a value that is in at least one of two ranges."""
    return Range(f'{first.words}, or {second.words}', lambda value: first.contains(value) or second.contains(value))


def special(value: Any, why: str) -> Range:
    """Allows one value with a special meaning, as in `special(-1, 'config.seed')`. 0.0 also allows 0."""
    types = (int, float) if isinstance(value, float) else (type(value),)
    return Range(f'{value!r} for {why}', lambda other: type(other) in types and other == value)


_DURATIONS = {'': 'a number of steps', '%': 'a percentage like 10%', 'epochs': 'epochs like 2epochs'}  # {unit: words}


def duration(*relative: str) -> Range:
    """Allows numbers of steps, and durations in the units of `relative`: '%' (percent of the run) and 'epochs'."""

    def contains(value: Any) -> bool:
        try:
            amount, unit = parse_duration(value)
        except ValueError:
            return False
        return unit in ('', *relative) and 0 <= amount <= COUNT and (unit != '' or amount == int(amount))

    steps = f'{_DURATIONS[""]} up to {COUNT:,}'
    return Range(', or '.join([steps, *(_DURATIONS[unit] for unit in relative)]), contains)


def parse_duration(value: int | float | str) -> tuple[float, str]:
    """Parses a duration such as 1000, '1000', '10%' or '2 epochs' to its amount and its unit: '', '%' or 'epochs'.

    Raises:
      ValueError: `value` is not a duration, or its amount is not between -1e18 and 1e18.
    """
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ValueError(value)
    match = re.fullmatch(r'(.*?)\s*(%|epochs?|)', str(value).strip().lower())
    digits, unit = match.groups() if match else ('', '')
    amount = int(digits) if digits.lstrip('+-').isdecimal() else float(digits)
    if not abs(amount) < 1e18:  # nan raises, too
        raise ValueError(value)
    return amount, 'epochs' if unit == 'epoch' else unit


def is_in_epochs(value: int | float | str) -> bool:
    """Returns whether the unit of a duration is epochs. Raises ValueError if `value` is not a duration."""
    return parse_duration(value)[1] == 'epochs'


_SECONDS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def parse_budget(text: str) -> tuple[float, float]:
    """Parses a value of config.budget: a time such as '25m', or a number of floating-point operations such as '3e15'.

    Returns:
      (seconds, infinity) or (infinity, operations).

    Raises:
      UserError: `text` is not a budget.
    """
    match = re.fullmatch(r'(\d+(?:\.\d+)?)(?:([smhd])|e(\d{1,2}))', text)
    amount = float(match[1]) if match else 0.0
    if not match or amount == 0:
        expected = 'a time such as 90s, 25m, 2h or 1d, or operations such as 3e15'
        raise UserError('config.budget', repr(text), expected, 'for example --config.budget=25m')
    return (amount * _SECONDS[match[2]], math.inf) if match[2] else (math.inf, amount * 10.0 ** int(match[3]))


def in_steps(
    value: int | float | str,
    key: str,
    *,
    total: int | None = None,
    steps_per_epoch: float | None = None,
    minimum: int = 0,
) -> int:
    """Converts a duration to steps: `1000`, `'1000'`, `'10%'` of `total`, `'2 epochs'` of `steps_per_epoch` steps.

    A duration above 0 gives at least `minimum` steps.

    Raises:
      UserError: `value` is not a duration, or its unit needs an argument that is None, or the number of steps is
        negative, above COUNT, or not whole.
    """
    factors = {'': 1, '%': total, 'epochs': steps_per_epoch}
    known = [unit for unit, factor in factors.items() if factor is not None]
    try:
        amount, unit = parse_duration(value)
        if unit not in known or amount < 0 or (not unit and amount != int(amount)):
            raise ValueError(value)
    except ValueError:
        expected = ' or '.join(_DURATIONS[unit] for unit in known)
        raise UserError(f'config.{key}', repr(value), expected, f'for example --config.{key}=1000') from None
    steps = round((amount / 100 if unit == '%' else amount) * factors[unit])
    if amount > 0:
        steps = max(steps, minimum)
    if steps > COUNT:
        raise UserError(f'config.{key}', f'{value!r} = {steps:,} steps', f'at most {COUNT:,} steps', 'lower it')
    return steps


def check_value(key: str, value: Any, allowed: Range, example: Any) -> None:
    """Raises a UserError if a value of config.KEY is outside its range. The error suggests the value `example`."""
    if not allowed.contains(value):
        several = isinstance(example, list | tuple)
        fix = f"--config.{key}='(VALUE,)', or () for none" if several else f'--config.{key}={example!r}'
        raise UserError(f'config.{key}', format_value(value), allowed.words, f'for example {fix}')


def format_value(value: Any) -> str:
    """Returns the `repr` or a short description of a value for a message, in at most 60 characters."""
    if isinstance(value, int) and abs(value) >= 10**20:  # Python refuses to print thousands of digits
        return f'a whole number of about {math.log10(abs(value)):.0f} digits'
    try:
        text = repr(value)
    except Exception:  # a list with such a number, or an object whose repr fails
        text = f'a {type(value).__name__}'
    return text if len(text) <= 60 else f'{text[:56]} …'
