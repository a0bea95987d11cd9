"""Shows the progress of training: a progress bar on a terminal, occasional lines elsewhere."""

import contextlib
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.progress import MofNCompleteColumn, TextColumn

from bertjax.files.paths import display_path
from bertjax.progress import format_duration, make_bar
from bertjax.terminal import Console, invocation
from bertjax.writers.writer import MetricRow, Writer

_POSITION = ('step', 'split', 'phase', 'examples')  # the fields of a row that are not metrics
# The short names are unambiguous, because each accuracy is printed after its loss.
_SHORT_NAMES = {'mlm_accuracy': 'accuracy', 'nsp_accuracy': 'accuracy', 'sop_accuracy': 'accuracy'}


class TrainingConsole(Writer):
    """A writer that shows the progress of a run: step, loss, sequences/s, time left.

    Args:
      first_step: The step at which the run starts or resumes.
      describe_time: A function that describes how much of the run's time limit has passed; None for a run without a
        time limit.
      step_costs: (last step, relative cost of a step) of each phase, for the time left that is printed without a
        terminal; () if all steps cost the same.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        describe_time: Callable[[], str] | None = None,
        step_costs: Sequence[tuple[int, float]] = (),
    ):
        self.console = Console(soft_wrap=True, highlight=False)
        done = MofNCompleteColumn() if describe_time is None else TextColumn('{task.completed:,}')
        self._progress = make_bar(
            done, TextColumn('{task.fields[status]}'), console=self.console, disable=not self.console.is_terminal
        )
        self._task = self._progress.add_task('[bold]step', total=total_steps, completed=first_step, status='')
        self._total, self._describe_time = total_steps, describe_time
        self._step_costs = step_costs or [(total_steps, 1.0)]

    def __str__(self) -> str:
        return 'the console'

    def __enter__(self) -> 'TrainingConsole':
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def log(self, text: str) -> None:
        """Prints a permanent line above the bar."""
        self.console.print(text, markup=False)

    @contextlib.contextmanager
    def show_status(self, status: str) -> Iterator[None]:
        """Sets the text of the bar within the context, then restores the previous text."""
        previous = self._progress.tasks[self._task].fields['status']
        self._progress.update(self._task, status=status)
        try:
            yield
        finally:
            self._progress.update(self._task, status=previous)

    def set_step(self, step: int) -> None:
        """Moves the bar to a step."""
        self._progress.update(self._task, completed=step)

    def write(self, row: MetricRow) -> None:
        """Shows a training row in the bar, or prints the row if there is no terminal. Other rows are always printed."""
        if row['split'] == 'train':
            speed, loss = f'{row["sequences_per_s"]:,.0f} seq/s', format_value(row['loss'])
            time = '' if self._describe_time is None else f'  {self._describe_time()}'
            self._progress.update(self._task, status=f'loss {loss}  {speed}{time}')
            if not self.console.is_terminal:
                left = self._steps_left(row['step']) * row['seconds_per_step']
                until = f'  left {format_duration(left)}' if row['step'] < self._total else ''
                total, until = (f'/{self._total}', until) if not time else ('', time)
                self.log(f'step {row["step"]}{total}  loss {loss}  {speed}{until}')
            return
        hidden = ('loss', 'perplexity') if 'mlm_loss' in row else ()  # derived from the other values
        values = {name: x for name, x in row.items() if name not in (*_POSITION, *hidden) and x is not None}
        parts = [f'{_SHORT_NAMES.get(name, name).replace("_", " ")} {format_value(x)}' for name, x in values.items()]
        self.log(f'{row["split"]} at step {row["step"]}: ' + '  '.join(parts))

    def _steps_left(self, step: int) -> float:
        """Returns the remaining work as an equivalent number of steps of the current phase."""
        phases = [(last, cost) for last, cost in self._step_costs if last >= step]
        begins = [step, *(last for last, _ in phases)]
        current = phases[0][1] if phases else 1.0
        return sum((last - begin) * cost / current for begin, (last, cost) in zip(begins, phases, strict=False))


def format_value(value: float | None) -> str:
    """Formats a value with three decimals, or as '-' if it is None or not finite."""
    return '-' if value is None or not math.isfinite(value) else f'{value:.3f}'


def print_output_files(
    console: Console, folder: pathlib.Path, descriptions: Mapping[str, str], *, exported: bool
) -> None:
    """Prints the files of `descriptions` that exist in a workdir. Omits files of an export unless `exported`."""
    console.print('\noutput files', style='bold')
    names = [name for name in descriptions if (folder / name).exists() and (exported or not name.startswith('export/'))]
    paths = {name: display_path(folder / name) for name in names}
    width = max(map(len, paths.values()), default=0)
    for name, path in paths.items():
        console.print(f'  {path:{width}}  {descriptions[name]}', markup=False)


def print_next_commands(console: Console, commands: Sequence[tuple[str, ...]]) -> None:
    """Prints commands, each with the invocation that started this program, such as `python -m bertjax.main`.

    A command is a tuple (purpose, flags), or (purpose, flags, extra) if it needs an extra of bertjax.
    """
    console.print('what to run next', style='bold')
    for purpose, flags, *extra in commands:
        needs = f' (needs the extra {extra[0]!r})' if extra else ''
        console.print(f'  {purpose}{needs}:\n    {invocation()} {flags}', markup=False)
