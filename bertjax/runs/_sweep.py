"""config.sweep: runs that differ in some settings, trained group by group; a finished one is not run again."""

import dataclasses
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from bertjax.config import dump, flatten, plain
from bertjax.errors import PreemptedError, UserError
from bertjax.files.atomic import write_atomic
from bertjax.metrics.rows import add_sums, finite_or_none, task_values
from bertjax.parallel.partition import mesh_context
from bertjax.runs import _settings as settings
from bertjax.runs._cells import Cell, cells_of, config_of, score_of, summarise, sweep_table
from bertjax.runs._interrupt import Interrupt
from bertjax.runs._results import EXPORTED, RESULTS, export_task, exported_cell, write_predictions
from bertjax.runs._steps import compile_step, lower_step
from bertjax.runs._task import Split, TaskData, total_steps
from bertjax.runs._tuning import Tuning, prepare
from bertjax.train.together import Member, Step, failed, members_template, stack_states, train_together
from bertjax.writers.console import TrainingConsole, shown
from bertjax.writers.jsonl import JsonLines

SWEEP = 'sweep.json'


def run_sweep(config: ConfigDict, folder: pathlib.Path, data: TaskData, mesh: jax.sharding.Mesh) -> None:
    """Runs the cells that have no results yet, exports the best so far, writes sweep.json, prints the table.

    Raises:
      UserError: the workdir has a sweep over something else.
      PreemptedError: after SIGTERM or Ctrl-C; finished cells are kept.
    """
    cells = cells_of(config)
    rows = len(data.split('train', training=True).features)
    for cell in cells:
        total_steps(config_of(config, cell), -(-rows // cell.batch_size))  # raises
    _check_same(config, data, folder)
    console = Console(highlight=False, soft_wrap=True)
    waiting = [cell for cell in cells if _result(folder, cell) is None]
    console.print(f'{len(cells)} runs, {len(cells) - len(waiting)} of them finished already')
    with Interrupt() as interrupt:
        for shape, group in itertools.groupby(waiting, key=lambda cell: cell.shape):
            members = list(group)
            train, tuning = prepare(data.with_config(config_of(config, members[0])), mesh)
            runs = _Group(tuning, train, folder)
            size = min(config.sweep.together or runs.members_that_fit(len(members)), len(members))
            together = f', {size} at a time' if size > 1 else ''
            console.print(
                f'train={shape[0]}, batches of {shape[1]}, {runs.epochs:.3g} epochs: {len(members)} runs{together}'
            )
            for first in range(0, len(members), size):
                runs.run(members[first : first + size], interrupt.requested)
    summary = summarise([(cell, _result(folder, cell)) for cell in cells], data.task.score)
    write_atomic(folder / SWEEP, json.dumps(summary, indent=2) + '\n')
    console.print(sweep_table(summary))
    console.print(f'the best on dev: {summary["best"]}, in {folder / "cells"}', markup=False)
    exported = exported_cell(folder)
    if config.export and exported:
        whose = 'its model' if exported == summary['best'] else f'the model of {exported}, the best of all runs here'
        console.print(f'{whose}: {folder / "export" / "hf"}', markup=False)


def _check_same(config: ConfigDict, data: TaskData, folder: pathlib.Path) -> None:
    """Refuses to mix the cells of different experiments; what the sweep is over may grow."""
    path = folder / 'config.json'
    judged = {name: data.split(name).features.fingerprint for name in data.evaluated}
    now = plain(config) | {'fingerprints': data.fingerprints() | judged}
    if path.exists() and (folder / 'cells').exists():
        before, after = flatten(json.loads(path.read_text(encoding='utf-8'))), flatten(now)
        for key, value in after.items():
            if before.get(key) != value and not key.startswith(('sweep.', 'mesh.')) and key != 'run':
                kind, _, name = key.partition('.')
                place = f'the {name}' if kind == 'fingerprints' else f'config.{key}'
                mend = 'restore the former value to continue the sweep, or give another --workdir'
                raise UserError(place, str(value), f'{before.get(key)}, as in {path}', mend)
    write_atomic(path, dump(now))


def _result(folder: pathlib.Path, cell: Cell) -> dict[str, Any] | None:
    path = folder / 'cells' / cell.name / RESULTS
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


class _Group:
    """The runs of one shape: compiled once, whatever their learning rates and seeds."""

    def __init__(self, tuning: Tuning, train: Split, folder: pathlib.Path):
        self._tuning, self._train, self._folder = tuning, train, folder
        self._batches = tuning.examples(train.features, 0)
        self.total = total_steps(tuning.config, self._batches.batches)
        self.epochs = self.total / self._batches.batches
        self._compiled: dict[int, Step] = {}

    def members_that_fit(self, count: int) -> int:
        """How many of `count` runs the device's memory holds at once; one on a CPU, where more gain nothing."""
        limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
        if not limit:
            return 1
        batches = self._batches.abstract_batches()
        longest = max(batches)
        while count > 1:
            lowered = lower_step(self._tuning, {longest: batches[longest]}, self.total, members=count)
            memory = lowered[longest].compile().memory_analysis()
            if memory.argument_size_in_bytes + memory.temp_size_in_bytes < 0.9 * limit:
                break
            count = -(-count // 2)
        return count

    def run(self, cells: Sequence[Cell], interrupted: Callable[[], bool]) -> None:
        """Trains, evaluates and writes these cells."""
        tuning, count = self._tuning, len(cells)
        if count not in self._compiled:
            lowered = lower_step(tuning, self._batches.abstract_batches(), self.total, members=count)
            self._compiled[count] = compile_step(lowered)
        of_cell = [config_of(tuning.config, cell) for cell in cells]
        with mesh_context(tuning.mesh):
            states = stack_states([tuning.fresh_state(settings.seed_of(c, 'init'))[0] for c in of_cell])
            states = jax.device_put(states, jax.tree.map(lambda x: x.sharding, members_template(tuning.state, count)))
        members = [
            Member(
                tuning.examples(self._train.features, settings.seed_of(c, 'data')),
                c.learning_rate,
                settings.seed_of(c, 'dropout'),
            )
            for c in of_cell
        ]
        folders = [self._folder / 'cells' / cell.name for cell in cells]
        with TrainingConsole(self.total, 0) as console:
            rows = _Rows(folders, console, log_every=tuning.config.log_every, total=self.total)
            try:
                states = train_together(
                    states,
                    members,
                    self._compiled[count],
                    self.total,
                    mesh=tuning.mesh,
                    record=rows.step,
                    interrupted=interrupted,
                )
            finally:
                rows.close()
        if states is None:
            raise PreemptedError('stopped as asked; the finished runs are kept, the same command does the others')
        self._finish(cells, states.params, rows.failed)

    def _finish(self, cells: Sequence[Cell], params: Any, failures: Sequence[bool]) -> None:
        """Figures and predictions of each cell; of the best so far, the model."""
        tuning, task = self._tuning, self._tuning.data.task
        predictor, count = tuning.predictor(members=len(cells)), len(cells)
        splits = {name: tuning.data.split(name) for name in tuning.data.evaluated}
        outputs = {name: predictor.outputs(params, split.features) for name, split in splits.items()}
        for m, cell in zip(range(count), cells, strict=True):
            results: dict[str, Any] = {'task': task.name, 'score': task.score, **dataclasses.asdict(cell)}
            results |= {'steps': self.total, 'splits': {}}
            for name, split in splits.items():
                mine = {key: [row[m] for row in rows] for key, rows in outputs[name].items()}
                predictions = task.predictions(split.records, split.features, mine)
                if name == 'dev':
                    task.tune(split.records, predictions)
                    results['collapsed'] = failures[m] or task.collapsed(split.records, predictions)
                results['splits'][name] = task.metrics(split.records, predictions)
                write_predictions(self._folder / 'cells' / cell.name / 'predictions', task, name, split, predictions)
            if tuning.config.export and self._is_best(results):
                plan = {**plain(config_of(tuning.config, cell)), 'steps': self.total, 'epochs': self.epochs}
                export_task(self._folder, plan, tuning, jax.tree.map(lambda x, m=m: x[m], params), results)
                write_atomic(self._folder / EXPORTED, f'{cell.name}\n')
            # Last: a cell with results is finished.
            path = self._folder / 'cells' / cell.name / RESULTS
            write_atomic(path, json.dumps(results, indent=2) + '\n')
            print(f'{cell.name}: {task.score} {shown(results["splits"]["dev"][task.score])}')

    def _is_best(self, results: Mapping[str, Any]) -> bool:
        others = [json.loads(path.read_text(encoding='utf-8')) for path in self._folder.glob(f'cells/*/{RESULTS}')]
        return all(score_of(results) > score_of(other) for other in others)


class _Rows:
    """Training rows of each cell, in its own metrics.jsonl; the mean loss of all in the bar."""

    def __init__(self, folders: Sequence[pathlib.Path], console: TrainingConsole, *, log_every: int, total: int):
        for folder in folders:
            (folder / 'metrics.jsonl').unlink(missing_ok=True)  # of a run that was not finished
        self._files = [JsonLines(folder / 'metrics.jsonl') for folder in folders]
        self._console, self._log_every, self._total = console, log_every, total
        self._sums: list[dict] = [{} for _ in folders]
        self.failed = [False for _ in folders]

    def step(self, number: int, scalars: Mapping[str, np.ndarray], sums: Sequence[Mapping]) -> None:
        self._console.step(number)
        for m, bad in enumerate(scalars['skipped_in_row']):
            self.failed[m] |= failed(bad)
            self._sums[m] = self._sums[m] if bad else add_sums([self._sums[m], sums[m]])
        if number % self._log_every and number != self._total:
            return
        for m, file in enumerate(self._files):
            own = {key: scalars[key][m].item() for key in ('grad_norm', 'param_norm', 'update_norm', 'learning_rate')}
            row = {'step': number, 'split': 'train', 'phase': 0, **task_values(self._sums[m]), **own}
            file.write(finite_or_none({**row, 'skipped': int(scalars['skipped'][m])}))
        losses = [task_values(part).get('loss') for part in self._sums]
        known = [loss for loss in losses if loss is not None]
        self._console.note(f'loss {shown(statistics.fmean(known) if known else None)}')
        self._sums = [{} for _ in self._files]

    def close(self) -> None:
        for file in self._files:
            file.close()
