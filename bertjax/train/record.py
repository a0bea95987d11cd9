"""The book-keeping of a training, of one run or of several together: late reading of step metrics, rows, ledgers."""

import collections
import contextlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from bertjax.checkpoint import Position
from bertjax.data.loader import NumberedBatch
from bertjax.errors import NonFiniteError
from bertjax.metrics.rows import Sums, add_sums, finite_or_none
from bertjax.parallel.distributed import is_primary
from bertjax.train.goodput_clock import COMPILE, GoodputClock
from bertjax.train.ledger import ledger_damage
from bertjax.train.profiler import Profiler
from bertjax.train.throughput import Stopwatch, memory_metrics
from bertjax.train.vmapped_runs import select_run
from bertjax.writers.console import TrainingConsole
from bertjax.writers.jsonl import JsonLines, read_rows
from bertjax.writers.tensorboard import TensorBoard
from bertjax.writers.writer import Writer, Writers

# A step's metrics are read when this many later steps have been handed to the devices, so that reading waits for none.
READ_BEHIND = 2
STOP_AFTER_SKIPPED = 3
_NOTICED = 1.0  # seconds of compiling that get a line


class Recorder:
    """Writes metrics.jsonl, ledger.jsonl and TensorBoard of each run, and shows their mean on the console.

    The ledger is no writer, which may fail: a training whose examples cannot be noted stops.

    A training row holds the means since the row before it (of losses, weighted) and, of the norms, the learning rate
    and the counters, the values of its own step. A step that is not finite counts in no mean. Three in a row end a
    single run; of runs trained together, that one has failed and the others go on.

    Args:
      folders: where the files of each run go.
      console: of the training.
      values: sums of training batches -> values of a row.
      log_every: steps between training rows.
      total: the last step.
      sheet: where the time goes.
      profiled: steps to trace.
      stacked: whether the leaves of metrics have the runs along the first axis.
      failed: which runs had failed when they were saved; none by default.
      trackers: one a run, where there are any.
    """

    def __init__(
        self,
        folders: Sequence[pathlib.Path],
        console: TrainingConsole,
        *,
        values: Callable[[Sums], dict[str, float | None]],
        log_every: int,
        total: int,
        sheet: GoodputClock,
        profiled: range = range(0),
        stacked: bool = False,
        failed: Sequence[bool] = (),
        trackers: Sequence[Writer] = (),
    ):
        files: list[list[Writer]] = [
            [JsonLines(folder / 'metrics.jsonl'), TensorBoard(folder / 'tensorboard')] if is_primary() else []
            for folder in folders
        ]
        for own, tracker in zip(files, trackers, strict=False):
            own.append(tracker)
        if not stacked:
            files[0].append(console)
        self._writers = [Writers(writers) for writers in files]
        self._overview = Writers([console] if stacked else [])
        self._ledgers = [JsonLines(folder / 'ledger.jsonl') for folder in folders]
        self._console, self._stopwatch, self.sheet = console, Stopwatch(), sheet
        self._profiler = Profiler(folders[0], profiled, console.log)
        self._values, self._log_every, self._total, self._stacked = values, log_every, total, stacked
        self._unread: collections.deque = collections.deque()
        self._sums: list[dict[str, tuple[float, float]]] = [{} for _ in folders]
        self._tokens, self._sequences = [0.0 for _ in folders], [0.0 for _ in folders]
        # The scalars of each run's last step, where no row has them yet, and its position.
        self._pending: tuple[Position, list[dict[str, float]]] | None = None
        self._skipped_in_row = [0 for _ in folders]  # at the last step that was read
        self.failed = list(failed) or [False for _ in folders]

    @property
    def suspect(self) -> bool:
        """Whether the last step that was read was not finite for a run that has not failed."""
        return any(skipped and not failed for skipped, failed in zip(self._skipped_in_row, self.failed, strict=True))

    def truncate_after(self, step: int) -> None:
        """Discards what an earlier process wrote beyond the checkpoint that the training continues from; -1: all."""
        for lines in (*self._writers, *self._ledgers):
            lines.truncate_after(step)

    def check(self, position: Position) -> None:
        """Says what is damaged in the rows and ledgers of an earlier process, up to the position of its checkpoint."""
        for ledger in self._ledgers:
            for wrong in ledger_damage(ledger.path, position):
                logging.warning('%s is damaged: %s. The training goes on; what is lost stays so.', ledger, wrong)
            read_rows(ledger.path.with_name('metrics.jsonl'))  # warns

    def sync(self) -> None:
        """Puts on disk what was written so far, before the checkpoint of the last step does."""
        for lines in (*self._ledgers, *self._writers):
            lines.sync()
        self.sheet.write()  # what a later process does again is told to the step

    def begin_phase(self, flops_per_sequence: float) -> None:
        """Begins to measure time; the argument is that of a training step, 0 where it is not known."""
        self._stopwatch.flops_per_sequence = flops_per_sequence
        self._stopwatch.restart()
        self.sheet.begin()

    def pause(self, seconds: float) -> None:
        """Leaves out time that was not spent on training."""
        self._stopwatch.pause(seconds)

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Shows that a step is compiled, and how long that took, which is no time of the training."""
        self.drain()
        began = time.perf_counter()
        with self.report_compile(what):
            yield
        self.pause(time.perf_counter() - began)

    @contextlib.contextmanager
    def report_compile(self, what: str) -> Iterator[None]:
        """Shows that something is compiled, and how long that took where a person would notice."""
        began = time.perf_counter()
        with self._console.busy(f'compiling {what} …'), self.sheet.during(COMPILE):
            yield
        seconds = time.perf_counter() - began
        if seconds >= _NOTICED:
            self._console.log(f'compiled {what} in {seconds:.0f} s')

    def tracing(self, step: int) -> contextlib.AbstractContextManager:
        """The context in which step number `step` is handed to the devices: config.profile may trace it."""
        return self._profiler.during(step, self.drain)

    def step(
        self, position: Position, batch: NumberedBatch, metrics: Any, waited: float, *, saving: bool = False
    ) -> None:
        """Notes one update: its example numbers at once, its metrics when they can be had without waiting.

        `saving`: whether a checkpoint is being written beside it.
        """
        used = {'first': batch.first, 'count': batch.count}
        for ledger in self._ledgers:
            ledger.write({'step': position.step, 'phase': position.phase, **used})
        for leaf in jax.tree.leaves(metrics):
            leaf.copy_to_host_async()
        self._unread.append((position, metrics, batch.count, waited))
        self._console.step(position.step)
        while len(self._unread) > READ_BEHIND:
            self._read()
        self._profiler.after(position.step, self.drain)
        shape = tuple(x.shape for x in batch.arrays.values())
        if slow := self.sheet.step(position.step, shape, saving=saving):
            self._console.log(slow)

    def drain(self) -> None:
        """Reads what is left unread (waits for the devices)."""
        while self._unread:
            self._read()

    def end_phase(self) -> None:
        """Reads what is left and gives the steps since the last row a row of their own: no row spans two phases."""
        self.drain()
        if self._pending:
            self._write_train_rows(*self._pending)

    def _read(self) -> None:
        position, metrics, count, waited = self._unread.popleft()
        metrics = jax.device_get(metrics)
        self._stopwatch.count(count, waited)
        each = [select_run(metrics, m) for m in range(len(self._sums))] if self._stacked else [metrics]
        scalars = [self._note(m, position, count, metrics) for m, metrics in enumerate(each)]
        self._pending = (position, scalars)
        ended = not self._stacked and self._skipped_in_row[0] >= STOP_AFTER_SKIPPED
        if ended or position.step % self._log_every == 0 or position.step == self._total:
            self._write_train_rows(position, scalars)
        if ended:
            raise NonFiniteError(_non_finite_message(position, scalars[0]))

    def _note(self, m: int, position: Position, rows: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Adds a step of run `m` to its sums; the scalars that its row would have."""
        scalars = {name: value.item() for name, value in metrics['scalars'].items()}
        self._tokens[m] += scalars.pop('tokens')
        self._sequences[m] += scalars.pop('sequences', rows)
        skipped = self._skipped_in_row[m] = scalars.pop('skipped_in_row')
        # A skipped step weighs nothing: where there is no other, the figures of a row are None.
        sums = dict.fromkeys(metrics['sums'], (0.0, 0.0)) if skipped else metrics['sums']
        self._sums[m] = add_sums([self._sums[m], sums])
        if skipped and not self.failed[m]:
            self.failed[m] = self._stacked and skipped >= STOP_AFTER_SKIPPED
            which = f'run {m + 1}, ' if self._stacked else ''
            then = 'it has failed' if self.failed[m] else 'the update is skipped'
            self._console.log(f'{which}step {position.step}: loss or gradient not finite, {then}')
        return scalars

    def _write_train_rows(self, position: Position, scalars: Sequence[Mapping[str, float]]) -> None:
        rates = self._stopwatch.lap(self._tokens, self._sequences)
        used = memory_metrics()
        rows = self._write(
            'train',
            position,
            [
                {**self._values(sums), **own, **rate, **used}
                for sums, own, rate in zip(self._sums, scalars, rates, strict=True)
            ],
        )
        losses = [row['loss'] for row in rows if row['loss'] is not None]
        self._overview.write({**rows[0], 'loss': statistics.fmean(losses) if losses else None})
        self._sums = [{} for _ in self._sums]
        self._tokens, self._sequences = [0.0 for _ in self._tokens], [0.0 for _ in self._sequences]
        self._pending = None

    def evaluation(self, position: Position, split: str, values: Mapping[str, float | None]) -> None:
        """Writes a row of what was measured on `split`, of a single run."""
        self._write(split, position, [values])

    def _write(self, split: str, position: Position, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        place = {'step': position.step, 'split': split, 'phase': position.phase, 'examples': position.next}
        rows = [finite_or_none({**place, **one}) for one in values]
        for writers, row in zip(self._writers, rows, strict=True):
            writers.write(row)
        return rows

    def close(self) -> None:
        """Closes the files."""
        self._profiler.close()
        for lines in (*self._writers, *self._ledgers):
            lines.close()


def _non_finite_message(position: Position, scalars: Mapping[str, float]) -> str:
    return (
        f'stopped: at step {position.step} the loss or the gradient was not finite for the '
        f'{STOP_AFTER_SKIPPED}rd time in a row ({scalars["skipped"]} skipped steps in all). No parameter '
        'was changed by them and the last checkpoint is intact. What to check: the learning rate '
        f'({scalars["learning_rate"]:.3g} now; try half of it, or a longer warm-up), config.optimizer.clip_norm '
        '(1.0 is usual), and the vocabulary of the checkpoint in config.init; then start the same command again.'
    )
