"""The trials of a sweep: every combination of config.sweep; and the table of their results over the seeds."""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.writers.console import format_value

# config.sweep.KEY -> (the field of a trial, its type). A field is config's own key.
AXES = {
    'trainable': ('trainable', str),
    'batch_size': ('batch_size', int),
    'epochs': ('epochs', float),
    'learning_rate': ('learning_rate', float),
    'seeds': ('seed', int),
}


@dataclasses.dataclass(frozen=True, order=True)
class Trial:
    """One run of a sweep. Its `epochs` are 0 where config.steps decides."""

    trainable: str
    batch_size: int
    epochs: float
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        epochs = f'epochs={self.epochs:g},' if self.epochs else ''
        return f'{self.trainable},batch={self.batch_size},{epochs}lr={self.learning_rate:g},seed={self.seed}'

    @property
    def shape(self) -> tuple:
        """Trials that are equal in this can be trained by one compiled step."""
        return self.trainable, self.batch_size, self.epochs

    @property
    def without_seed(self) -> tuple:
        """All but the seed: what a line of the table is about."""
        return *self.shape, self.learning_rate

    def settings(self, base: FinetuningSettings) -> FinetuningSettings:
        """The settings of the run: those of the sweep, with its own values."""
        return dataclasses.replace(base, **dataclasses.asdict(self))


def trials_of(settings: FinetuningSettings) -> list[Trial]:
    """All combinations of config.sweep; none where it is empty.

    Raises:
      UserError: a value twice, or two that would share a folder; epochs where config.steps decides.
    """
    sweep = settings.sweep
    if sweep.epochs and settings.steps_decide:
        found, fix = f'{tuple(sweep.epochs)} beside config.steps={settings.steps}', 'give one of the two'
        raise UserError('config.sweep.epochs', found, 'config.steps=0, so that the epochs decide', fix)
    values: dict[str, list] = {}
    for key, (field, kind) in AXES.items():
        given, usual = getattr(sweep, key), getattr(settings, field)
        if len(set(given)) != len(given):
            raise UserError(f'config.sweep.{key}', str(tuple(given)), 'each value once', 'leave the second one out')
        values[field] = [kind(value) for value in given] or [usual]
    if not any(getattr(sweep, key) for key in AXES):
        return []
    if settings.steps_decide:
        values['epochs'] = [0.0]
    trials = sorted(Trial(*combination) for combination in itertools.product(*values.values()))
    named: dict[str, Trial] = {}
    for other in trials:
        one = named.setdefault(other.name, other)
        if one != other:
            found = f'{one.epochs!r} epochs at {one.learning_rate!r} and {other.epochs!r} at {other.learning_rate!r}'
            fix = 'leave one of the two out'
            raise UserError('config.sweep', found, 'values that differ in their first six digits', fix)
    return trials


def score_of(results: Mapping[str, Any]) -> float:
    """The dev score of a run; -inf where it is not defined."""
    value = results['splits']['dev'][results['score']]
    return -np.inf if value is None else value


def summarise(runs: Sequence[tuple[Trial, Mapping[str, Any]]], score: str) -> dict[str, Any]:
    """What sweep.json says.

    Args:
      runs: the trials with their results.
      score: the name of the figure that they are compared by.

    Returns:
      Of each setting over its seeds: median, mean, standard deviation, best, how many collapsed; and the best run of
      all on dev.
    """
    lines = []
    for _, group in itertools.groupby(sorted(runs, key=lambda run: run[0]), key=lambda run: run[0].without_seed):
        members = list(group)
        trial, scores = members[0][0], [score_of(results) for _, results in members if np.isfinite(score_of(results))]
        facts = {key: value for key, value in dataclasses.asdict(trial).items() if key != 'seed'}
        lines.append(
            {
                **facts,
                'runs': len(members),
                'median': statistics.median(scores) if scores else None,
                'mean': statistics.fmean(scores) if scores else None,
                'sd': statistics.stdev(scores) if len(scores) > 1 else None,
                'best': max(scores, default=None),
                'collapsed': sum(results['collapsed'] for _, results in members),
            }
        )
    best = max(runs, key=lambda run: score_of(run[1]))[0]
    return {'score': score, 'settings': lines, 'best': best.name}


def sweep_table(summary: Mapping[str, Any]) -> Table:
    """A row a setting."""
    # Narrow enough for 80 columns, which is what a pipe or a file has.
    table = Table(title=f'{summary["score"]} on dev', title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ('trainable', 'batch', 'epochs', 'rate', 'runs', 'median', 'mean', 'sd', 'best', 'collapsed'):
        table.add_column(name, justify='left' if name == 'trainable' else 'right')
    for line in summary['settings']:
        figures = (format_value(line[key]) for key in ('median', 'mean', 'sd', 'best'))
        epochs = f'{line["epochs"]:g}' if line['epochs'] else '-'
        place = (line['trainable'], str(line['batch_size']), epochs, f'{line["learning_rate"]:g}')
        table.add_row(*place, str(line['runs']), *figures, str(line['collapsed']))
    return table
