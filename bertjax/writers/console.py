"""What a person sees while training: a progress bar on a terminal, a line now and then elsewhere."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from rich.progress import MofNCompleteColumn, TextColumn

from bertjax.files.paths import user_name
from bertjax.progress import clock, make_bar
from bertjax.terminal import Console, invocation
from bertjax.writers.writer import Row

_PLACE = ('step', 'split', 'phase', 'examples')  # of a row: where it stands
_SHORT = {'mlm_accuracy': 'accuracy', 'nsp_accuracy': 'accuracy', 'sop_accuracy': 'accuracy'}  # each follows its loss


class TrainingConsole:
    """Progress of a run: step, loss, sequences/s, time left."""

    def __init__(self, total_steps: int, first_step: int, silent: bool = False):
        self.console = Console(soft_wrap=True, highlight=False, quiet=silent)
        self._progress = make_bar(
            MofNCompleteColumn(),
            TextColumn('{task.fields[status]}'),
            console=self.console,
            disable=not self.console.is_terminal or silent,
        )
        self._task = self._progress.add_task('[bold]step', total=total_steps, completed=first_step, status='')
        self._total = total_steps

    def __str__(self) -> str:
        return 'the console'

    def __enter__(self) -> 'TrainingConsole':
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def log(self, text: str) -> None:
        """Prints a line that stays, above the bar."""
        self._progress.console.print(text, markup=False)

    def status(self, text: str) -> None:
        """What the bar says until the next row."""
        self._progress.update(self._task, status=text)

    @contextlib.contextmanager
    def busy(self, status: str) -> Iterator[None]:
        """The bar says `status` as long as the context lasts, then again what it said before."""
        before = self._progress.tasks[self._task].fields['status']
        self.status(status)
        try:
            yield
        finally:
            self.status(before)

    def step(self, step: int) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=step)

    def truncate_after(self, step: int) -> None:
        """Does nothing: what was printed stays."""

    def sync(self) -> None:
        """Does nothing: nothing of it is kept."""

    def close(self) -> None:
        """Does nothing: leaving the context stops the bar."""

    def write(self, row: Row) -> None:
        """Shows a row of metrics.jsonl: training rows in the bar (a line without a terminal), others as a line."""
        if row['split'] == 'train':
            speed, loss = f'{row["sequences_per_s"]:,.0f} seq/s', format_value(row['loss'])
            self._progress.update(self._task, status=f'loss {loss}  {speed}')
            if not self.console.is_terminal:
                left = (self._total - row['step']) * row['seconds_per_step']
                until = f'  left {clock(left)}' if row['step'] < self._total else ''
                self.log(f'step {row["step"]}/{self._total}  loss {loss}  {speed}{until}')
            return
        hidden = ('loss', 'perplexity') if 'mlm_loss' in row else ()  # they follow from the rest
        values = {name: x for name, x in row.items() if name not in (*_PLACE, *hidden) and x is not None}
        parts = [f'{_SHORT.get(name, name).replace("_", " ")} {format_value(x)}' for name, x in values.items()]
        self.log(f'{row["split"]} at step {row["step"]}: ' + '  '.join(parts))


def format_value(value: float | None) -> str:
    """Three digits after the point, or a dash."""
    return '-' if value is None or not math.isfinite(value) else f'{value:.3f}'


def print_places(console: Console, folder: pathlib.Path, places: Mapping[str, str], *, exported: bool) -> None:
    """Prints a workdir's output files, {path within it: what it is}; those of an export only where there was one."""
    console.print('\noutput files', style='bold')
    there = [name for name in places if (folder / name).exists() and (exported or not name.startswith('export/'))]
    paths = {name: user_name(folder / name) for name in there}
    width = max(map(len, paths.values()), default=0)
    for name, path in paths.items():
        console.print(f'  {path:{width}}  {places[name]}', markup=False)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that one may run next.

    Attributes:
      purpose: what it does.
      flags: of the program.
      extra: the extra of bertjax that it needs; '' for none.
    """

    purpose: str
    flags: str
    extra: str = ''


def print_next(console: Console, commands: Sequence[Command]) -> None:
    """Prints commands, in the form in which this program was called."""
    console.print('what to run next', style='bold')
    for command in commands:
        needs = f' (needs the extra {command.extra!r})' if command.extra else ''
        console.print(f'  {command.purpose}{needs}:\n    {invocation()} {command.flags}', markup=False)
