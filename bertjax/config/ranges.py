"""What a config value may be. A range tells whether a value lies in it, and says in words what does."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from bertjax.errors import UserError

# Above every size that a machine of today could hold, far below what would overflow in it.
MANY = 2**20
COUNT = 2**31 - 1  # steps and examples: of what a checkpoint counts in int32


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a config key may have.

    Attributes:
      words: 'a whole number from 1 to 100'.
      holds: whether a value, of any type, is one of them.
    """

    words: str
    holds: Callable[[Any], bool]


def whole(least: int, most: int) -> Range:
    """Whole numbers; True and 2.0 are none."""
    return Range(
        f'a whole number from {least:,} to {most:,}',
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
    )


def number(least: float, most: float, *, above: bool = False, below: bool = False) -> Range:
    """Finite numbers from `least` to `most`; with `above` not `least` itself, with `below` not `most`."""
    words = f'a number {"above" if above else "from"} {least:,g}{"," if above else ""} to {"below " * below}{most:,g}'

    def holds(value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:  # nan is none
            return False
        return not (above and value == least) and not (below and value == most)

    return Range(words, holds)


def flag() -> Range:
    """True or False."""
    return Range('True or False', lambda value: isinstance(value, bool))


def one_of(names: Iterable[str]) -> Range:
    """One of these words."""
    names = tuple(names)
    return Range(
        'one of ' + ', '.join(name or "''" for name in names),
        lambda value: isinstance(value, str) and value in names,
    )


def text(*, empty: bool = True) -> Range:
    """Text that a file can hold, a path or a name; with `empty`, '' stands for none."""

    def holds(value: Any) -> bool:
        return isinstance(value, str) and (empty or bool(value.strip())) and _writable(value)

    return Range('text' if empty else 'text that is not empty', holds)


def word(pattern: str, words: str) -> Range:
    """Text that a regular expression matches as a whole, said in `words`."""
    return Range(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def each(items: Range) -> Range:
    """A list of values of this range."""
    return Range(
        f'a list, each of it {items.words}',
        lambda value: isinstance(value, list | tuple) and all(map(items.holds, value)),
    )


def either(first: Range, second: Range) -> Range:
    """What one of the two holds."""
    return Range(f'{first.words}, or {second.words}', lambda value: first.holds(value) or second.holds(value))


def only(value: Any, why: str) -> Range:
    """A value that stands for something else: `only(0, "the run's own")`."""
    return Range(f'{value!r} for {why}', lambda given: type(given) is type(value) and given == value)


def duration(*relative: str) -> Range:
    """Durations: steps, and the `relative` ones among '%' of the run and 'epochs'."""
    forms = {'%': 'a percentage like 10%', 'epochs': 'epochs like 2epochs'}

    def holds(value: Any) -> bool:
        try:
            amount, unit = parse_duration(value)
        except ValueError:
            return False
        return unit in ('', *relative) and 0 <= amount <= COUNT and (unit != '' or amount == int(amount))

    return Range(', or '.join([f'a number of steps to {COUNT:,}', *(forms[unit] for unit in relative)]), holds)


def parse_duration(value: int | float | str) -> tuple[float, str]:
    """Amount and unit: `1000` and `'1000'` have none, `'10%'` has '%', `'2 epochs'` has 'epochs'.

    Raises:
      ValueError: another form, or no finite amount.
    """
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ValueError(value)
    match = re.fullmatch(r'(.*?)\s*(%|epochs?|)', str(value).strip().lower())
    written, unit = match.groups() if match else ('', '')
    amount = int(written) if written.lstrip('+-').isdecimal() else float(written)
    if not abs(amount) < 1e18:  # nan is not, either
        raise ValueError(value)
    return amount, 'epochs' if unit == 'epoch' else unit


def in_steps(
    value: int | float | str, key: str, *, total: int | None = None, steps_per_epoch: float | None = None
) -> int:
    """A duration in steps: `1000`, `'1000'`, `'10%'` of `total`, or `'2 epochs'` of `steps_per_epoch` steps.

    Raises:
      UserError: another form, less than 0 or more than int32 counts, or a relative one where there is nothing to
        relate it to.
    """
    try:
        amount, unit = parse_duration(value)
        if unit == '%' and total is not None:
            steps = round(amount / 100 * total)
        elif unit == 'epochs' and steps_per_epoch is not None:
            steps = round(amount * steps_per_epoch)
        elif not unit and amount == int(amount):
            steps = int(amount)
        else:
            raise ValueError(value)
        if not 0 <= steps <= COUNT:
            raise ValueError(value)
    except ValueError:
        forms = ['a number of steps']
        forms += ['a percentage like 10%'] if total is not None else []
        forms += ['epochs like 2epochs'] if steps_per_epoch is not None else []
        raise UserError(f'config.{key}', repr(value), ' or '.join(forms), f'for example --config.{key}=1000') from None
    return steps


def check_value(key: str, value: Any, allowed: Range, example: Any) -> None:
    """Refuses a value of config.KEY outside its range.

    Raises:
      UserError: key, value, range, and `example` as it is written on the command line.
    """
    if not allowed.holds(value):
        several = isinstance(example, list | tuple)
        fix = f"--config.{key}='(VALUE,)', or () for none" if several else f'--config.{key}={example!r}'
        raise UserError(f'config.{key}', format_value(value), allowed.words, f'for example {fix}')


def format_value(value: Any) -> str:
    """A value in a message: as Python writes it, and no longer than a line has room for."""
    if isinstance(value, int) and abs(value) >= 10**20:  # of thousands of digits Python refuses to write it
        return f'a whole number of about {math.log10(abs(value)):.0f} digits'
    try:
        text = repr(value)
    except Exception:  # a list with such a number, or an object of somebody else's
        text = f'a {type(value).__name__}'
    return text if len(text) <= 60 else f'{text[:56]} …'


def _writable(value: str) -> bool:
    """No NUL, which no path can have, and no half of a surrogate pair, which UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return '\0' not in value
