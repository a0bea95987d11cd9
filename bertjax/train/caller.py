"""The program that started a training: the command line, or Python code that goes on after it."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator

from bertjax.writers.writer import Row


@dataclasses.dataclass(frozen=True)
class Caller:
    """How a training treats the program that started it.

    Attributes:
      word: What continues an interrupted training, for messages: 'command' or 'call'.
      ends_process: Whether a third signal ends the process. If not, it raises KeyboardInterrupt.
      on_row: A function that gets each row of metrics after it is written; None for none.
    """

    word: str = 'command'
    ends_process: bool = True
    on_row: Callable[[Row], None] | None = None


_COMMAND_LINE = Caller()
# A context variable, so that neither verbs nor experiments pass it on, and each thread has its own.
_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar('caller', default=_COMMAND_LINE)


def current_caller() -> Caller:
    """Returns the caller of this thread's training."""
    return _caller.get()


@contextlib.contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """A context whose trainings have this caller."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)
