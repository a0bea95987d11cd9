"""What the doctor says: a line a check, with its next step; and what turns a refusal into one."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

from rich.text import Text

from bertjax.errors import UserError, printable
from bertjax.terminal import Console

OK, WARN, FAIL = 'ok', 'warn', 'FAIL'
_STYLES = {OK: 'green', WARN: 'yellow', FAIL: 'bold red'}
_WIDTH = 11  # of the longest `about`


@dataclasses.dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
      about: what was looked at, in a word or two.
      status: OK, WARN or FAIL: with the last nothing can be started, or what ran is of no use.
      found: in one line.
      fix: the next step; '' where there is none.
    """

    about: str
    status: str
    found: str
    fix: str = ''


Look = Callable[..., Iterable[Check]]


def looking_at(about: str) -> Callable[[Look], Callable[..., Iterator[Check]]]:
    """Makes of what a function refuses, with UserError, a check that failed."""

    def decorate(look: Look) -> Callable[..., Iterator[Check]]:
        @functools.wraps(look)
        def looks(*args, **options) -> Iterator[Check]:
            try:
                yield from look(*args, **options)
            except UserError as error:
                yield Check(about, FAIL, f'{error.where}: found {error.found}, expected {error.expected}', error.fix)

        return looks

    return decorate


class Findings:
    """Prints checks as they come, and counts them."""

    def __init__(self, console: Console):
        self._console = console
        self.counts = dict.fromkeys((OK, WARN, FAIL), 0)

    def section(self, title: str, *looks: Iterable[Check]) -> None:
        """A title, and below it what each of `looks` found; nothing where that is nothing."""
        for look in looks:
            for check in look:
                if title:
                    self._console.print(f'\n{title}', style='bold', markup=False)
                    title = ''
                self.counts[check.status] += 1
                line = Text(f'  {check.status:4}  ', style=_STYLES[check.status])
                told = f'{check.found}; {check.fix}' if check.fix else check.found
                line.append(f'{check.about:{_WIDTH}}  {printable(told)}', style='default not bold')
                self._console.print(line)
