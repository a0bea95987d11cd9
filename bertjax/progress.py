"""Progress reports: a bar in a terminal or a notebook, occasional lines elsewhere."""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from rich import filesize
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from bertjax.terminal import Console

_BAR_DELAY = 2.0  # Seconds before a bar appears.
_LINE_INTERVAL = 10.0  # Seconds between the lines that replace a bar.

# A function of the number of newly finished items. If it is None, functions of inference/ show a progress bar.
Advance = Callable[[int], object]


def make_bar(*columns: ProgressColumn, console: Console, **options: Any) -> Progress:
    """Makes a `Progress` in the common style: description, bar, `columns`, remaining or, at the end, elapsed time."""
    first = (TextColumn('{task.description}'), BarColumn(bar_width=30))
    time_left = TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True))
    return Progress(*first, *columns, time_left, console=console, **options)


@contextlib.contextmanager
def show_progress(title: str, total: int | None, *, lines: bool = False, in_bytes: bool = False) -> Iterator[Advance]:
    """Shows a progress bar in a terminal or a notebook, once the work has taken two seconds.

    Args:
      title: The title of the bar; '' shows no bar.
      total: The number of items; None if it is unknown.
      lines: Whether to print a line every ten seconds where no bar can be drawn, for example in a log file.
      in_bytes: Whether the items are bytes.
    """
    columns = [MofNCompleteColumn()]
    if in_bytes:
        no_wrap = Column(no_wrap=True)
        columns = [DownloadColumn(table_column=no_wrap), TransferSpeedColumn(table_column=no_wrap)]
    console = Console(stderr=True, force_jupyter=None)
    in_terminal = console.is_terminal and sys.stderr.isatty()  # with FORCE_COLOR, rich calls a file a terminal
    # In a notebook rich needs ipywidgets to draw a bar.
    has_bar = bool(title) and (in_terminal or (console.is_jupyter and find_spec('ipywidgets') is not None))
    bar = make_bar(*columns, console=console, transient=True)
    task, start = bar.add_task(escape(title), total=total), time.monotonic()
    last = start

    def advance(count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if has_bar and not bar.live.is_started and now - start > _BAR_DELAY:
            bar.start()
        bar.advance(task, count)
        if lines and not has_bar and now - last > _LINE_INTERVAL:
            done, last = int(bar.tasks[0].completed), now
            amount = filesize.decimal if in_bytes else '{:,}'.format
            share = f' of {amount(total)} ({done / max(total, 1):.0%})' if total is not None else ''
            print(f'{title}: {amount(done)}{share}, {amount(round(done / (now - start)))} a second', flush=True)

    try:
        yield advance
    finally:
        if bar.live.is_started:  # Stopping a bar that has not started would print an empty line.
            bar.stop()


def ensure_progress(advance: Advance | None, title: str, total: int) -> contextlib.AbstractContextManager[Advance]:
    """Returns a context manager that yields `advance`, or the function of a new bar if `advance` is None."""
    return contextlib.nullcontext(advance) if advance else show_progress(title, total)


def scale_progress(advance: Advance, total: int, steps: int) -> Advance:
    """Returns a function that takes the number of newly finished steps and calls `advance` with whole items.

    The `total` items, for example texts, take `steps` steps in all, for example one for each mask.
    """
    done = 0

    def step(count: int) -> None:
        nonlocal done
        previous, done = done, done + count
        if more := total * done // steps - total * previous // steps:
            advance(more)

    return step


def format_duration(seconds: float) -> str:
    """Formats a duration as '0:01:02' or '1 day, 0:01:02'."""
    return str(datetime.timedelta(seconds=round(seconds)))
