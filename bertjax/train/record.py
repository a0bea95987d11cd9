"""The book-keeping of a run: late reading of step metrics, rows, ledger."""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bertjax.checkpoint import Position
from bertjax.data.loader import NumberedBatch
from bertjax.errors import NonFiniteError
from bertjax.metrics.rows import Sums, add_sums, finite_or_none, pretraining_values
from bertjax.train.throughput import Stopwatch, memory
from bertjax.writers.console import TrainingConsole
from bertjax.writers.jsonl import JsonLines
from bertjax.writers.tensorboard import TensorBoard

# A step's metrics are read when this many later steps have been handed to the devices, so that reading waits for none.
READ_BEHIND = 2
STOP_AFTER_SKIPPED = 3


@dataclasses.dataclass(frozen=True)
class Reporting:
    """How what is measured becomes rows.

    Attributes:
      split: of the evaluated rows: 'heldout', 'dev'.
      trained: sums of training batches -> values of a row.
      evaluated: what the phase's evaluator gave -> values of a row.
      cost: of an evaluated row's values; lower is better, and the best checkpoint goes by it.
    """

    split: str
    trained: Callable[[Sums], dict[str, float | None]]
    evaluated: Callable[[Any], dict[str, float | None]]
    cost: Callable[[Mapping[str, float | None]], float | None]


PRETRAINING = Reporting('heldout', pretraining_values, pretraining_values, lambda values: values['loss'])


class Recorder:
    """Writes metrics.jsonl, ledger.jsonl, TensorBoard and the console.

    A training row holds the means since the row before it (of losses, weighted) and, of the norms, the learning rate
    and the counters, the values of its own step.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        console: TrainingConsole,
        stopwatch: Stopwatch,
        *,
        log_every: int,
        total: int,
        reporting: Reporting = PRETRAINING,
    ):
        self.metrics = JsonLines(workdir / 'metrics.jsonl')
        self.ledger = JsonLines(workdir / 'ledger.jsonl')
        self._tensorboard = TensorBoard(workdir / 'tensorboard')
        self._console = console
        self._stopwatch = stopwatch
        self._log_every = log_every
        self._total = total
        self._reporting = reporting
        self._unread: collections.deque = collections.deque()
        self._sums: dict[str, tuple[float, float]] = {}
        self._tokens = 0.0
        self._pending: tuple[Position, Mapping[str, float]] | None = None  # the last step, where no row has it yet
        self.skipped_in_row = 0  # at the last step that was read

    def forget_after(self, step: int) -> None:
        """Cuts what an earlier process wrote beyond the checkpoint that the run continues from."""
        self.metrics.forget_after(step)
        self.ledger.forget_after(step)

    def step(self, position: Position, batch: NumberedBatch, metrics: Any, waited: float) -> None:
        """Notes one update: its example numbers at once, its metrics when they can be had without waiting."""
        used = {'first': batch.first, 'count': batch.count}
        self.ledger.write({'step': position.step, 'phase': position.phase, **used})
        for leaf in jax.tree.leaves(metrics):
            leaf.copy_to_host_async()
        self._unread.append((position, metrics, batch.count, waited))
        self._console.step(position.step)
        while len(self._unread) > READ_BEHIND:
            self._read()

    def drain(self) -> None:
        """Reads what is left unread (waits for the devices)."""
        while self._unread:
            self._read()

    def end_phase(self) -> None:
        """Reads what is left and gives the steps since the last row a row of their own: no row spans two phases."""
        self.drain()
        if self._pending:
            self._write_train_row(*self._pending)

    def _read(self) -> None:
        position, metrics, count, waited = self._unread.popleft()
        metrics = jax.device_get(metrics)
        self._stopwatch.count(count, waited)
        scalars = {name: value.item() for name, value in metrics['scalars'].items()}
        self.skipped_in_row = scalars['skipped_in_row']
        if self.skipped_in_row >= STOP_AFTER_SKIPPED:
            raise NonFiniteError(_non_finite_message(position, scalars))
        if self.skipped_in_row:
            self._console.say(f'step {position.step}: loss or gradient not finite, the update is skipped')
        else:
            self._sums = add_sums([self._sums, metrics['sums']])
        self._tokens += scalars.pop('tokens')
        scalars.pop('skipped_in_row')
        self._pending = (position, scalars)
        if position.step % self._log_every == 0 or position.step == self._total:
            self._write_train_row(position, scalars)

    def _write_train_row(self, position: Position, scalars: Mapping[str, float]) -> None:
        rates = self._stopwatch.lap(self._tokens)
        self._write('train', position, {**self._reporting.trained(self._sums), **scalars, **rates, **memory()})
        self._sums, self._tokens, self._pending = {}, 0.0, None

    def evaluation(self, position: Position, result: Any) -> float | None:
        """Writes a row of what the evaluator gave; returns its cost."""
        values = self._reporting.evaluated(result)
        self._write(self._reporting.split, position, values)
        return self._reporting.cost(values)

    def _write(self, split: str, position: Position, values: Mapping[str, Any]) -> None:
        row = {'step': position.step, 'split': split, 'phase': position.phase, 'examples': position.next}
        row = finite_or_none({**row, **values})
        self.metrics.write(row)
        self._tensorboard.write(row)
        self._console.row(row)

    def close(self) -> None:
        """Closes the files."""
        self.metrics.close()
        self.ledger.close()
        self._tensorboard.close()


def _non_finite_message(position: Position, scalars: Mapping[str, float]) -> str:
    return (
        f'stopped: at step {position.step} the loss or the gradient was not finite for the '
        f'{scalars["skipped_in_row"]}rd time in a row ({scalars["skipped"]} skipped steps in all). No parameter '
        'was changed by them and the last checkpoint is intact. What to check: the learning rate '
        f'({scalars["learning_rate"]:.3g} now; try half of it, or a longer warm-up), config.optimizer.clip_norm '
        '(1.0 is usual), and the vocabulary of the checkpoint in config.init; then start the same command again.'
    )
