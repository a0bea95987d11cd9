"""The averages of GLUE: one figure for all tasks, as the leaderboard and as BERT's paper count it.

The leaderboard (Wang et al. 2018, arXiv 1804.07461: where a task has several figures, their mean is the task's score)
means MNLI matched and mismatched into one task, and counts all nine tasks: WNLI too.

Table 1 of the BERT paper (arXiv 1810.04805) has one figure a column, MNLI matched and mismatched are two columns, and
WNLI is left out. That this is how its averages were made follows from its own numbers: 79.6 of base and 82.1 of large.
"""

import statistics
from collections.abc import Mapping

# {task: {split: figures}}, as results.json has `splits`.
Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]

_ACCURACY = ('accuracy',)
# The figures that the leaderboard means into the score of a task.
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
# The one figure of a column of the paper's table; its order is that of the table.
PAPER = {'mnli': 'accuracy', 'qqp': 'f1', 'qnli': 'accuracy', 'sst2': 'accuracy', 'cola': 'matthews'}
PAPER |= {'stsb': 'spearman', 'mrpc': 'f1', 'rte': 'accuracy'}
SPLITS = {'mnli': ('dev', 'dev_mismatched')}  # of a task's score; of all others dev


def task_figures(figures: Figures, task: str) -> dict[str, tuple[float | None, ...]]:
    """{split: its official figures} of a task, of the splits that were evaluated; all in [-1, 1]."""
    splits = {split: figures[task][split] for split in SPLITS.get(task, ('dev',)) if split in figures[task]}
    return {split: tuple(values[name] for name in OFFICIAL[task]) for split, values in splits.items()}


def task_score(figures: Figures, task: str) -> float | None:
    """The task's part of the leaderboard's average: the mean of its figures; None where one is undefined."""
    values = [value for of_split in task_figures(figures, task).values() for value in of_split]
    return None if None in values else statistics.fmean(values)


def official_average(figures: Figures, *, without: tuple[str, ...] = ()) -> float | None:
    """The mean of the `task_score` of all tasks that are there; None where one is undefined, or none is there."""
    return _mean([task_score(figures, task) for task in OFFICIAL if task in figures and task not in without])


def paper_average(figures: Figures) -> float | None:
    """The mean of the columns of the BERT paper's table that are there; None as above."""
    columns = [(task, split) for task in PAPER if task in figures for split in SPLITS.get(task, ('dev',))]
    return _mean([figures[task][split][PAPER[task]] for task, split in columns if split in figures[task]])


def _mean(values: list[float | None]) -> float | None:
    return statistics.fmean(values) if values and None not in values else None
