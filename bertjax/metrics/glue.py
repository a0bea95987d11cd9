"""Averages over the tasks of GLUE, as on the leaderboard and in the BERT paper.

On the leaderboard (Wang et al. 2018, arXiv 1804.07461), the score of a task is the mean of its metrics. MNLI matched
and mismatched are one task. The average covers all nine tasks, including WNLI.

In table 1 of the BERT paper (arXiv 1810.04805), each column has a single metric. MNLI has two columns, matched and
mismatched, and WNLI has none. The averages in the table, 79.6 for BERT-base and 82.1 for BERT-large, are the means of
these columns.
"""

import statistics
from collections.abc import Mapping

# {task: {split: {metric: value}}}. The value of a task has the form of `splits` in results.json.
Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]

_ACCURACY = ('accuracy',)
# The metrics of each task; their mean is the score of the task on the leaderboard.
OFFICIAL = {
    'cola': ('matthews',),
    'sst2': _ACCURACY,
    'mrpc': ('f1', 'accuracy'),
    'stsb': ('pearson', 'spearman'),
    'qqp': ('f1', 'accuracy'),
    'mnli': _ACCURACY,
    'qnli': _ACCURACY,
    'rte': _ACCURACY,
    'wnli': _ACCURACY,
}
# The metric of each column of the BERT paper's table, in the order of the columns.
PAPER = {'mnli': 'accuracy', 'qqp': 'f1', 'qnli': 'accuracy', 'sst2': 'accuracy', 'cola': 'matthews'}
PAPER |= {'stsb': 'spearman', 'mrpc': 'f1', 'rte': 'accuracy'}
SPLITS = {'mnli': ('dev', 'dev_mismatched')}  # the splits that the score of a task covers; 'dev' for all other tasks
PAPER_COLUMNS = len(PAPER) + 1  # MNLI has two columns


def task_figures(figures: Figures, task: str) -> dict[str, tuple[float | None, ...]]:
    """Returns {split: values of the OFFICIAL metrics} for the evaluated SPLITS of a task. Values are in [-1, 1]."""
    splits = {split: figures[task][split] for split in SPLITS.get(task, ('dev',)) if split in figures[task]}
    return {split: tuple(values[name] for name in OFFICIAL[task]) for split, values in splits.items()}


def task_score(figures: Figures, task: str) -> float | None:
    """Returns the mean of all values of `task_figures`; None if there are none, or if one is None."""
    return _mean([value for metrics in task_figures(figures, task).values() for value in metrics])


def official_average(figures: Figures, *, without: tuple[str, ...] = ()) -> float | None:
    """Returns the mean `task_score` of all tasks except `without`; None if there are none, or if a score is None."""
    return _mean([task_score(figures, task) for task in OFFICIAL if task in figures and task not in without])


def paper_average(figures: Figures) -> float | None:
    """Returns the mean of the BERT paper's columns that `figures` has; None if there are none, or if one is None."""
    return _mean([figures[task][split][PAPER[task]] for task, split in paper_columns(figures)])


def paper_columns(figures: Figures) -> list[tuple[str, str]]:
    """Returns (task, split) for each column of the BERT paper's table that `figures` has, at most PAPER_COLUMNS."""
    columns = [(task, split) for task in PAPER if task in figures for split in SPLITS.get(task, ('dev',))]
    return [(task, split) for task, split in columns if split in figures[task]]


def _mean(values: list[float | None]) -> float | None:
    return statistics.fmean(values) if values and None not in values else None
