"""The errors of a fine-tuned model: scores by class, a confusion table, and the worst errors with their texts."""

import collections
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.finetune.task_data import sample_records
from bertjax.metrics.classification import scores_from_counts
from bertjax.pages.page import Section, Token
from bertjax.report.run_record import Run, quiet, read_lines
from bertjax.tasks.task import Task

_WORST = 12
_MATRIX = 20  # the maximum number of classes in a confusion table
_NOTHING = '(nothing)'


def errors_section(run: Run, task: Task, folder: pathlib.Path, about: str = '') -> Section:
    """Returns the section that reviews a finished run's predictions for dev.

    Args:
      task: The task with its learned labels.
      folder: The folder with predictions/: the workdir, or the folder of a trial of a sweep.
      about: A sentence about the source of the predictions; '' if the run itself made them.
    """
    try:
        data = _review(run, task, folder / 'predictions' / 'dev.jsonl')
    except UserError as error:
        data = f'The records of dev can no longer be read: {error}'
    if isinstance(data, str):
        return Section('errors', 'Errors on dev', note=data)
    return Section('errors', 'Errors on dev', data, about)


def _review(run: Run, task: Task, path: pathlib.Path) -> dict[str, Any] | str:
    """Returns the data of the section, or the reason why there is no data."""
    rows = read_lines(path)
    if rows is None and path.exists():
        return f'{path} is damaged; run=evaluate writes it again.'
    if rows is None:
        return 'There are no predictions for dev yet: a finished run writes them.'
    with quiet():
        records = sample_records(task.records('dev'), run.config['max_eval_records'])
    if len(records) != len(rows):
        counts = f'{len(rows):,} predictions for {len(records):,} records of dev'
        return f'{counts}: the data or config.max_eval_records has changed.'
    try:
        judgments = list(task.judgments(records, rows))
    except (LookupError, TypeError, ValueError):
        return 'Another version wrote the predictions for dev; run=evaluate writes them again.'
    wrong = sorted((judgment for judgment in judgments if judgment.error > 0), key=lambda judgment: -judgment.error)
    counts = collections.Counter(pair for judgment in judgments for pair in judgment.classes)
    return {
        **_classes(counts, task),
        'records': len(judgments),
        'wrong': len(wrong),
        'worst': [
            ([Token(judgment.true, 'right', 'true'), Token(judgment.predicted, 'wrong', 'predicted')], judgment.texts)
            for judgment in wrong[:_WORST]
        ],
    }


def _classes(counts: Mapping[tuple[str, str], int], task: Task) -> dict[str, Any]:
    """Returns precision, recall and F1 of each class, and the confusion table."""
    present = {name for pair in counts for name in pair}
    names = [name for name in task.labels if name in present] + sorted(present - {''} - set(task.labels))
    axis = [*names, ''] if '' in present else names
    table = np.array([[counts[true, predicted] for predicted in axis] for true in axis]).reshape(len(axis), len(axis))
    scores = scores_from_counts(table.diagonal(), table.sum(1), table.sum(0))
    columns = (names, scores.precision, scores.recall, scores.f1, scores.true, scores.predicted)
    rows = [
        (name, f'{precision:.3f}', f'{recall:.3f}', f'{f1:.3f}', f'{true:,}', f'{predicted:,}')
        for name, precision, recall, f1, true, predicted in zip(*columns, strict=False)
    ]
    titles = [name or _NOTHING for name in axis]
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    matrix = {
        title: [(share, f'{count:,}') for share, count in zip(*cells, strict=True)]
        for title, *cells in zip(titles, shares, table.tolist(), strict=True)
    }
    return {'classes': rows, 'titles': titles, 'confusion': matrix if len(axis) <= _MATRIX else {}}
