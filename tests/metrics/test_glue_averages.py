"""Tests that the GLUE averages of published results equal the published averages."""

import pytest

from bertjax.metrics.glue import (
    OFFICIAL,
    PAPER_COLUMNS,
    official_average,
    paper_average,
    paper_columns,
    task_figures,
    task_score,
)
from bertjax.tasks.sentence.glue_table import TASKS

# Test results of BERT-large: the leaderboard (quoted in arXiv 1901.11504, table 2), and table 1 of BERT's paper.
LARGE = {
    'cola': {'dev': {'matthews': 0.605}},
    'sst2': {'dev': {'accuracy': 0.949}},
    'mrpc': {'dev': {'f1': 0.893, 'accuracy': 0.854}},
    'stsb': {'dev': {'pearson': 0.876, 'spearman': 0.865}},
    'qqp': {'dev': {'f1': 0.721, 'accuracy': 0.893}},
    'mnli': {'dev': {'accuracy': 0.867}, 'dev_mismatched': {'accuracy': 0.859}},
    'qnli': {'dev': {'accuracy': 0.927}},
    'rte': {'dev': {'accuracy': 0.701}},
    'wnli': {'dev': {'accuracy': 0.651}},
}


def test_the_average_of_the_leaderboard():
    """The leaderboard gives 80.5 for this entry."""
    assert round(100 * official_average(LARGE), 1) == 80.5
    assert task_score(LARGE, 'mnli') == pytest.approx(0.863)
    assert task_score(LARGE, 'mrpc') == pytest.approx(0.8735)
    assert task_figures(LARGE, 'mnli') == {'dev': (0.867,), 'dev_mismatched': (0.859,)}
    assert official_average(LARGE, without=('wnli',)) > official_average(LARGE)


def test_the_average_of_the_paper():
    """Table 1 has 82.1 for large and 79.6 for base."""
    assert round(100 * paper_average(LARGE), 1) == 82.1
    names = ('mnli', 'qqp', 'qnli', 'sst2', 'cola', 'stsb', 'mrpc', 'rte')
    base = dict(zip(names, (0.846, 0.712, 0.905, 0.935, 0.521, 0.858, 0.889, 0.664), strict=True))
    figures = dict.fromkeys(('accuracy', 'f1', 'matthews', 'spearman'))
    splits = {task: {'dev': dict.fromkeys(figures, value)} for task, value in base.items()}
    splits['mnli']['dev_mismatched'] = {'accuracy': 0.834}
    assert round(100 * paper_average(splits), 1) == 79.6


def test_averages_of_fewer_tasks():
    some = {task: LARGE[task] for task in ('rte', 'cola')}
    assert official_average(some) == paper_average(some) == pytest.approx((0.701 + 0.605) / 2)
    assert official_average({'cola': {'dev': {'matthews': None}}}) is None and paper_average({}) is None
    assert len(paper_columns(LARGE)) == PAPER_COLUMNS == 9
    assert paper_columns({**some, 'mnli': {'dev': {}}}) == [('mnli', 'dev'), ('cola', 'dev'), ('rte', 'dev')]
    only_train = {'rte': {'train': {'accuracy': 0.9}}}  # of run=evaluate with another split
    assert official_average(only_train) is None and paper_average(only_train) is None


def test_every_task_has_its_official_metrics():
    assert OFFICIAL.keys() == TASKS.keys()
    assert all(set(names) <= set(TASKS[task].measures) for task, names in OFFICIAL.items())
