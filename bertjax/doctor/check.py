"""The result of a check of run=doctor, and the function that prints and counts the results."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import jax
from rich.text import Text

from bertjax.errors import UserError, first_line, printable
from bertjax.files.paths import display_text
from bertjax.memory import out_of_memory_error
from bertjax.terminal import Console

OK, WARN, FAIL = 'ok', 'warn', 'FAIL'
_STYLES = {OK: 'green', WARN: 'yellow', FAIL: 'bold red'}
_WIDTH = 11  # the length of the longest `about`


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
      about: The subject, in one or two words.
      status: OK, WARN or FAIL. FAIL means that a run cannot start or that its result is useless.
      message: The result, in one line.
      fix: The next step; '' if there is none.
    """

    about: str
    status: str
    message: str
    fix: str = ''


def check(about: str) -> Callable[[Callable[..., Iterable[Check]]], Callable[..., Iterator[Check]]]:
    """Decorates a generator of checks: a UserError or an error of JAX becomes a failed check of `about`."""

    def decorate(function: Callable[..., Iterable[Check]]) -> Callable[..., Iterator[Check]]:
        @functools.wraps(function)
        def run(*args, **options) -> Iterator[Check]:
            try:
                yield from function(*args, **options)
            except UserError as error:
                yield Check(about, FAIL, f'{error.where}: found {error.found}, expected {error.expected}', error.fix)
            except jax.errors.JaxRuntimeError as error:
                fix = 'end the process that uses the devices, or repair the driver'
                if out_of_memory_error(error):
                    fix = 'end other processes that use the devices, or raise config.grad_accum_steps if there are none'
                yield Check(about, FAIL, f'JAX cannot compute: {first_line(error)}', fix)

        return run

    return decorate


def print_checks(console: Console, title: str, *groups: Iterable[Check]) -> collections.Counter[str]:
    """Prints a title and the checks, or nothing if there are no checks. Returns {status: number of checks}."""
    counts: collections.Counter[str] = collections.Counter()
    for result in itertools.chain.from_iterable(groups):
        if not counts:
            console.print(f'\n{title}', style='bold', markup=False)
        counts[result.status] += 1
        line = Text(f'  {result.status:4}  ', style=_STYLES[result.status])
        text = f'{result.message}; {result.fix}' if result.fix else result.message
        line.append(f'{result.about:{_WIDTH}}  {printable(display_text(text))}', style='default not bold')
        console.print(line)
    return counts
