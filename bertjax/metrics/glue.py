"""The averages over the tasks of GLUE, as on the leaderboard and in BERT's paper.

The leaderboard (Wang et al. 2018, arXiv 1804.07461) averages the metrics of a task to its score, treats MNLI matched
and mismatched as one task, and averages all nine tasks, including WNLI.

Table 1 of the BERT paper (arXiv 1810.04805) has one metric in each column, two columns for MNLI matched and mismatched,
and no WNLI. Its averages, 79.6 for base and 82.1 for large, follow from this rule.
"""

import statistics
from collections.abc import Mapping

# {task: {split: {metric: value}}}, like `splits` in results.json.
Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]

_ACCURACY = ('accuracy',)
# The metrics that the leaderboard averages to the score of a task.
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
# The metric of each column of the paper's table, in its order.
PAPER = {'mnli': 'accuracy', 'qqp': 'f1', 'qnli': 'accuracy', 'sst2': 'accuracy', 'cola': 'matthews'}
PAPER |= {'stsb': 'spearman', 'mrpc': 'f1', 'rte': 'accuracy'}
SPLITS = {'mnli': ('dev', 'dev_mismatched')}  # the splits of a task's score; 'dev' for all other tasks


def task_figures(figures: Figures, task: str) -> dict[str, tuple[float | None, ...]]:
    """Returns {split: official metrics} of a task for its evaluated splits; all values are in [-1, 1]."""
    splits = {split: figures[task][split] for split in SPLITS.get(task, ('dev',)) if split in figures[task]}
    return {split: tuple(values[name] for name in OFFICIAL[task]) for split, values in splits.items()}


def task_score(figures: Figures, task: str) -> float | None:
    """Returns a task's score on the leaderboard, the mean of its metrics; None if one is undefined."""
    values = [value for metrics in task_figures(figures, task).values() for value in metrics]
    return None if None in values else statistics.fmean(values)


def official_average(figures: Figures, *, without: tuple[str, ...] = ()) -> float | None:
    """Returns the mean `task_score` of all tasks in `figures`; None if there is none or one is undefined."""
    return _mean([task_score(figures, task) for task in OFFICIAL if task in figures and task not in without])


def paper_average(figures: Figures) -> float | None:
    """Returns the mean of the columns of the BERT paper's table in `figures`; None if none or one is undefined."""
    columns = [(task, split) for task in PAPER if task in figures for split in SPLITS.get(task, ('dev',))]
    return _mean([figures[task][split][PAPER[task]] for task, split in columns if split in figures[task]])


def _mean(values: list[float | None]) -> float | None:
    return statistics.fmean(values) if values and None not in values else None
