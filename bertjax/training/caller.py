"""The program that started a training: the command line, or Python code that continues after the training."""

import contextvars
import dataclasses
from collections.abc import Callable

from bertjax.writers.writer import MetricRow


@dataclasses.dataclass(frozen=True)
class Caller:
    """The properties of the caller that a training needs."""

    word: str = 'command'  # 'command' or 'call', in messages such as 'the same command continues there'
    ends_process: bool = True  # whether a third signal ends the process; if not, it raises KeyboardInterrupt
    on_row: Callable[[MetricRow], None] | None = None  # called with each row of metrics after the row is written


_COMMAND_LINE = Caller()
# The caller of the current training. Each thread has its own value. Functions read this variable, not an argument.
CALLER: contextvars.ContextVar[Caller] = contextvars.ContextVar('caller', default=_COMMAND_LINE)
