"""The trials of a sweep (all combinations of the values in config.sweep), and a summary of their results."""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.terminal import make_table
from bertjax.writers.console import format_value


@dataclasses.dataclass(frozen=True, order=True)
class Trial:
    """One run of a sweep. Each field is the value of a config key. `epochs` is 0 if config.steps sets the length."""

    trainable: str
    batch_size: int
    epochs: float
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """The name of the folder of the trial. No other trial has the same name."""
        epochs, rate = (repr(value).removesuffix('.0') for value in (self.epochs, self.learning_rate))
        epochs = f'epochs={epochs},' if self.epochs else ''
        return f'{self.trainable},batch={self.batch_size},{epochs}lr={rate},seed={self.seed}'

    @property
    def shape(self) -> tuple:
        """The fields that trials must share to train together, with one compiled step."""
        return self.trainable, self.batch_size, self.epochs

    def settings(self, base: FinetuningSettings) -> FinetuningSettings:
        """Returns the settings `base` of the sweep with the values of this trial."""
        return dataclasses.replace(base, **dataclasses.asdict(self))


def make_trials(settings: FinetuningSettings) -> list[Trial]:
    """Returns all combinations of the values in config.sweep, or an empty list if there is no sweep.

    Raises a UserError if a value occurs twice, or if config.steps or config.seeds overrides the values of the sweep.
    """
    sweep = settings.sweep
    if sweep.epochs and settings.steps_decide:
        found, fix = f'{tuple(sweep.epochs)} with config.steps={settings.steps}', 'give one of the two'
        raise UserError('config.sweep.epochs', found, 'config.steps=0, so that the epochs set the length', fix)
    if sweep.seeds and -1 not in vars(settings.seeds).values():
        found, fix = f'{tuple(sweep.seeds)}, but config.seeds sets all seeds', 'set --config.seeds.data=-1'
        raise UserError('config.sweep.seeds', found, 'no values, because they have no effect', fix)
    values: dict[str, list] = {}
    for field in dataclasses.fields(Trial):
        key = 'seeds' if field.name == 'seed' else field.name
        swept = getattr(sweep, key)
        if len(set(swept)) != len(swept):
            raise UserError(f'config.sweep.{key}', str(tuple(swept)), 'each value once', 'remove the duplicate')
        if swept:
            values[field.name] = [field.type(value) for value in swept]
    if not values:
        return []
    if settings.steps_decide:
        values['epochs'] = [0.0]
    defaults = {field.name: [getattr(settings, field.name)] for field in dataclasses.fields(Trial)}
    return sorted(Trial(*combination) for combination in itertools.product(*(defaults | values).values()))


def dev_score(results: Mapping[str, Any]) -> float:
    """Returns the dev score of a run, or -inf if it is undefined."""
    value = results['splits']['dev'][results['score']]
    return -np.inf if value is None else value


def summarize(runs: Sequence[tuple[Trial, Mapping[str, Any]]], score: str) -> dict[str, Any]:
    """Returns the content of sweep.json for the runs. `score` is the dev metric that ranks the runs.

    The list `settings` has an entry for each group of runs that differ only in their seed, with the median, mean,
    standard deviation and maximum of the defined scores. `best` is the name of the best run, and `trials` has all
    names.
    """
    lines = []
    ordered = sorted(runs, key=lambda run: run[0])
    for _, group in itertools.groupby(ordered, key=lambda run: (*run[0].shape, run[0].learning_rate)):
        members = list(group)
        trial, scores = members[0][0], [dev_score(results) for _, results in members if np.isfinite(dev_score(results))]
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
    best = max(runs, key=lambda run: dev_score(run[1]))[0]
    return {'score': score, 'settings': lines, 'best': best.name, 'trials': [trial.name for trial, _ in ordered]}


def sweep_table(summary: Mapping[str, Any]) -> Table:
    """Returns a table with a row for each group of runs that differ only in their seed."""
    names = ('trainable', 'batch', 'epochs', 'rate', 'runs', 'median', 'mean', 'sd', 'best', 'collapsed')
    table = make_table(f'{summary["score"]} on dev', *names)
    for line in summary['settings']:
        figures = (format_value(line[key]) for key in ('median', 'mean', 'sd', 'best'))
        epochs = f'{line["epochs"]:g}' if line['epochs'] else '-'
        setting = (line['trainable'], str(line['batch_size']), epochs, f'{line["learning_rate"]:g}')
        table.add_row(*setting, str(line['runs']), *figures, str(line['collapsed']))
    return table
