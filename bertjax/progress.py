"""How far it is: a bar in a terminal or a notebook, a line now and then elsewhere."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from bertjax.terminal import Console

_PATIENCE = 2.0  # seconds without a bar
_LINES = 10.0  # seconds between lines that stand for one

Advance = Callable[[int], object]  # is told how many more are done


def make_bar(*columns: ProgressColumn, console: Console, **options: Any) -> Progress:
    """A bar as all of ours are: what is done, the bar, `columns`, the time that is left.

    Args:
      columns: of this bar.
      console: where it is drawn.
      options: see rich.progress.Progress.
    """
    shown = (TextColumn('{task.description}'), BarColumn(bar_width=30), *columns)
    return Progress(*shown, _Time(table_column=Column(no_wrap=True)), console=console, **options)


@contextlib.contextmanager
def progress(title: str, total: int | None, *, lines: bool = False) -> Iterator[Advance]:
    """What tells a person how far it is: a bar, in a terminal or a notebook, once it has taken two seconds.

    Args:
      title: of the bar; '' for none.
      total: what there is to be done.
      lines: elsewhere, as in a log, print a line every ten seconds.

    Yields:
      A function that is told how many more of `total` (None: nobody knows) are done.
    """
    console = Console(stderr=True)
    # A notebook draws rich's bar with ipywidgets alone.
    shown = bool(title) and (console.is_terminal or (console.is_jupyter and find_spec('ipywidgets') is not None))
    bar = make_bar(MofNCompleteColumn(), console=console, transient=True)
    task, began = bar.add_task(title, total=total), time.monotonic()
    last = began

    def advance(count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if shown and not bar.live.is_started and now - began > _PATIENCE:
            bar.start()
        bar.advance(task, count)
        if lines and not shown and now - last > _LINES:
            done, last = int(bar.tasks[0].completed), now
            of = f' of {total:,} ({done / max(total, 1):.0%})' if total is not None else ''
            print(f'{title}: {done:,}{of}, {done / (now - began):,.0f} a second', flush=True)

    try:
        yield advance
    finally:
        if bar.live.is_started:  # else it would print an empty line
            bar.stop()


def telling(advance: Advance | None, title: str, total: int) -> contextlib.AbstractContextManager[Advance]:
    """Whom to tell of progress: `advance`, or where there is none a bar, see `progress`."""
    return contextlib.nullcontext(advance) if advance else progress(title, total)


def in_proportion(advance: Advance, total: int, steps: int) -> Advance:
    """What is told of `steps`, such as the masks of texts, and tells `advance` as many of `total`, the texts."""
    done = 0

    def step(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if more := total * done // steps - total * before // steps:
            advance(more)

    return step


def clock(seconds: float) -> str:
    """'0:01:02'; '1 day, 0:01:02'."""
    return str(datetime.timedelta(seconds=round(seconds)))


class _Time(ProgressColumn):
    """The time that is left; when nothing is, the time that it took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f'took {clock(task.finished_time)}')
        return Text('left -:--:--' if task.time_remaining is None else f'left {clock(task.time_remaining)}')
