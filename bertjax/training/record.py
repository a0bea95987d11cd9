"""The records of a training of one or several runs: step metrics, metrics rows, ledgers."""

import collections
import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from bertjax.checkpoint.position import Position
from bertjax.data.loader import NumberedBatch
from bertjax.errors import NonFiniteError
from bertjax.metrics.rows import add_sums, finite_or_none
from bertjax.parallel.distributed import is_primary
from bertjax.training.caller import CALLER
from bertjax.training.health.goodput_clock import COMPILE, GoodputClock
from bertjax.training.health.ledger import ledger_damage
from bertjax.training.health.profiler import Profiler
from bertjax.training.health.throughput import Throughput, memory_metrics
from bertjax.training.phase import Experiment
from bertjax.training.vmapped_runs import select_run
from bertjax.workdir.lock import TRIALS, trial_fields
from bertjax.writers.console import TrainingConsole
from bertjax.writers.jsonl import JsonLines, read_rows
from bertjax.writers.tensorboard import TensorBoard
from bertjax.writers.tracker import Tracker
from bertjax.writers.writer import Callback, Writers

# The metrics of a step are read this many steps later, so that reading does not wait for the devices. A CPU has
# finished the step when the call returns, because `devices.claim_devices` turns off asynchronous dispatch.
READ_BEHIND, CPU_READ_BEHIND = 2, 0
STOP_AFTER_SKIPPED = 3  # non-finite steps in a row
_MIN_REPORTED = 1.0  # seconds; the durations of longer compilations are printed


class Recorder:
    """Writes metrics.jsonl, ledger.jsonl and TensorBoard events for each run. Prints the loss, averaged over the runs.

    A writer that fails is dropped with a warning. A ledger that fails stops the training, because it must be complete.

    A training row has the weighted means of the losses since the previous row or resume, and the norms, learning rate
    and counters of its step. The means exclude steps with a non-finite loss, gradient or update. Three of these steps
    in a row end the training of a single run. If several runs are trained together, the three steps mark their run as
    failed, and the training continues.

    Args:
      stacked: Whether the leaves of the metrics have the runs along the first axis.
      failed: Whether each run had failed before the checkpoint from which the training resumes; () if none had.
    """

    def __init__(
        self,
        experiment: Experiment,
        console: TrainingConsole,
        run_clock: GoodputClock,
        *,
        profiled: range = range(0),
        stacked: bool = False,
        failed: Sequence[bool] = (),
    ):
        folders, trackers = experiment.folders, _trackers(experiment)
        on_row, self._writers = CALLER.get().on_row, []
        for m, folder in enumerate(folders):
            writers = [JsonLines(folder / 'metrics.jsonl'), TensorBoard(folder / 'tensorboard')] if is_primary() else []
            writers += trackers[m : m + 1]
            writers += [Callback(on_row, trial_fields(folder))] if on_row else []
            self._writers.append(Writers(writers if stacked else [*writers, console]))
        self._overview = Writers([console] if stacked else [])
        self._ledgers = [JsonLines(folder / 'ledger.jsonl') for folder in folders]
        self._console, self._throughput, self.run_clock = console, Throughput(run_clock), run_clock
        self._profiler = Profiler(folders[0], profiled, console.log)
        self._values, self._settings, self._stacked = experiment.values, experiment.settings, stacked
        self._unread: collections.deque = collections.deque()
        self._read_behind = CPU_READ_BEHIND if jax.default_backend() == 'cpu' else READ_BEHIND
        self._sums: list[dict[str, tuple[float, float]]] = [{} for _ in folders]
        self._tokens, self._sequences = [0.0 for _ in folders], [0.0 for _ in folders]
        # The position and the scalars of the last step that was read; None if a row already contains them.
        self._pending: tuple[Position, list[dict[str, float]]] | None = None
        self._skipped_in_row = [0 for _ in folders]  # as of the last step that was read
        self.failed = list(failed) or [False for _ in folders]

    @property
    def suspect(self) -> bool:
        """Whether a run skipped the last step that was read. Failed runs do not count."""
        return any(skipped and not failed for skipped, failed in zip(self._skipped_in_row, self.failed, strict=True))

    def truncate_after(self, step: int) -> None:
        """Discards the rows after the checkpoint's step `step`. -1 discards all rows."""
        for lines in (*self._writers, *self._ledgers):
            lines.truncate_after(step)

    def check(self, position: Position) -> None:
        """Logs damage in the metrics rows, and in the ledgers up to the position of the checkpoint."""
        for ledger in self._ledgers:
            for damage in ledger_damage(ledger.path, position):
                logging.warning('%s is damaged: %s. Training continues without the lost lines.', ledger, damage)
            read_rows(ledger.path.with_name('metrics.jsonl'))  # logs warnings

    def sync(self) -> None:
        """Syncs the files to disk. Call this before a checkpoint is written."""
        for lines in (*self._ledgers, *self._writers):
            lines.sync()
        self.run_clock.write()  # so that `read_goodput` knows the exact steps that a restarted run repeats

    def begin_phase(self, flops_per_row: float) -> None:
        """Starts to measure the throughput of a phase. See `Phase` for `flops_per_row`."""
        self._throughput.begin(flops_per_row)
        self.run_clock.begin()

    @contextlib.contextmanager
    def report_compile(self, what: str) -> Iterator[None]:
        """Reports a compilation, and its duration if it takes at least a second."""
        began = time.perf_counter()
        with self._console.show_status(f'compiling {what} …'), self.run_clock.during(COMPILE):
            yield
        seconds = time.perf_counter() - began
        if seconds >= _MIN_REPORTED:
            self._console.log(f'compiled {what} in {seconds:.0f} s')

    def tracing(self, step: int) -> contextlib.AbstractContextManager:
        """Returns the context in which to dispatch a step, for traces by config.profile."""
        return self._profiler.during(step, self.drain)

    def step(self, position: Position, batch: NumberedBatch, metrics: Any, *, saving: bool = False) -> None:
        """Records the update before `position`: its example numbers now, its metrics some steps later.

        `metrics` are on the devices. `saving` is whether a checkpoint is being written at the same time.
        """
        row = {'step': position.step, 'phase': position.phase, 'first': batch.first, 'count': batch.count}
        for ledger in self._ledgers:
            ledger.write(row)
        for leaf in jax.tree.leaves(metrics):
            leaf.copy_to_host_async()
        self._unread.append((position, metrics, batch.count))
        self._console.set_step(position.step)
        while len(self._unread) > self._read_behind:
            self._read()
        self._profiler.after(position.step, self.drain)
        shape = tuple(x.shape for x in batch.arrays.values())
        if slow := self.run_clock.step(position.step, shape, saving=saving):
            self._console.log(slow)

    def drain(self) -> None:
        """Waits for the devices, and reads all metrics that have not been read yet."""
        while self._unread:
            self._read()

    def write_pending(self) -> None:
        """Writes a row for the steps since the last row, so that no row spans two phases or is lost at a stop."""
        self.drain()
        if self._pending:
            self._write_train_rows(*self._pending)

    def _read(self) -> None:
        position, metrics, count = self._unread.popleft()
        metrics = jax.device_get(metrics)
        self._throughput.count(count)
        run_metrics = [select_run(metrics, m) for m in range(len(self._sums))] if self._stacked else [metrics]
        scalars = [self._note(m, position, count, metrics) for m, metrics in enumerate(run_metrics)]
        self._pending = (position, scalars)
        is_over = not self._stacked and self._skipped_in_row[0] >= STOP_AFTER_SKIPPED
        if is_over or position.step % self._settings.log_every == 0 or position.step == self._settings.steps:
            self._write_train_rows(position, scalars)
        if is_over:
            raise NonFiniteError(_non_finite_message(position, scalars[0]))

    def _note(self, m: int, position: Position, rows: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Adds a step of run `m` to the sums of this run, and returns the scalars of the step."""
        scalars = {name: value.item() for name, value in metrics['scalars'].items()}
        self._tokens[m] += scalars.pop('tokens')
        self._sequences[m] += scalars.pop('sequences', rows)
        skipped = self._skipped_in_row[m] = scalars.pop('skipped_in_row')
        # A skipped step has weight 0. The means of a row are None if all its steps are skipped.
        sums = dict.fromkeys(metrics['sums'], (0.0, 0.0)) if skipped else metrics['sums']
        self._sums[m] = add_sums([self._sums[m], sums])
        if skipped and not self.failed[m]:
            self.failed[m] = self._stacked and skipped >= STOP_AFTER_SKIPPED
            prefix = f'run {m + 1}, ' if self._stacked else ''
            outcome = 'the run has failed' if self.failed[m] else 'the update is skipped'
            self._console.log(f'{prefix}step {position.step}: loss, gradient or update not finite, {outcome}')
        return scalars

    def _write_train_rows(self, position: Position, scalars: Sequence[Mapping[str, float]]) -> None:
        rates, memory = self._throughput.lap(self._tokens, self._sequences), memory_metrics()
        parts = zip(self._sums, scalars, rates, strict=True)
        values = [{**self._values(sums), **run_scalars, **rate, **memory} for sums, run_scalars, rate in parts]
        rows = self._write('train', position, values)
        losses = [row['loss'] for row in rows if row['loss'] is not None]
        self._overview.write({**rows[0], 'loss': statistics.fmean(losses) if losses else None})
        self._sums = [{} for _ in self._sums]
        self._tokens, self._sequences = [0.0 for _ in self._tokens], [0.0 for _ in self._sequences]
        self._pending = None

    def evaluation(self, position: Position, split: str, values: Mapping[str, float | None]) -> None:
        """Writes a row with the values of an evaluation on `split`, for a single run."""
        self._write(split, position, [values])

    def evaluated_splits(self, position: Position) -> set[str]:
        """Returns the names of the splits that have a row at the step of `position`."""
        rows = read_rows(self._ledgers[0].path.with_name('metrics.jsonl')) if is_primary() else []
        return {row['split'] for row in rows if row['step'] == position.step}

    def _write(self, split: str, position: Position, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        columns = {'step': position.step, 'split': split, 'phase': position.phase, 'examples': position.next}
        rows = [finite_or_none({**columns, **row_values}) for row_values in values]
        for writers, row in zip(self._writers, rows, strict=True):
            writers.write(row)
        return rows

    def close(self) -> None:
        """Ends a running trace, and closes the writers and ledgers."""
        self._profiler.close()
        for lines in (*self._writers, *self._ledgers):
            lines.close()


def _non_finite_message(position: Position, scalars: Mapping[str, float]) -> str:
    return (
        f'stopped: at step {position.step} the loss, the gradient or the update was not finite for the '
        f'{STOP_AFTER_SKIPPED}rd time in a row ({scalars["skipped"]} skipped steps in all). These steps changed '
        'no parameters, and all saved checkpoints are intact. Check the learning rate '
        f'({scalars["learning_rate"]:.3g} now; try half of it, or a longer warm-up), config.optimizer.clip_norm '
        '(1.0 is usual), and the vocabulary of the checkpoint in config.init; '
        f'then start the same {CALLER.get().word} again.'
    )


def _trackers(experiment: Experiment) -> list[Tracker]:
    """Returns a tracker for each run; [] without config.tracker. The name of a trial is SWEEP/TRIAL."""
    settings, trackers = experiment.settings, []
    if not settings.tracker or not is_primary():
        return []
    for folder, config in zip(experiment.folders, experiment.run_configs, strict=True):
        path = folder.resolve()
        is_trial = path.parent.name == TRIALS
        name = settings.tracker_run or (path.parents[1] if is_trial else path).name
        name = f'{name}/{path.name}' if is_trial else name
        trackers.append(Tracker(settings.tracker, settings.tracker_project, folder, name, config))
    return trackers
