"""The errors of a fine-tuned model: scores by class, a confusion table, and the worst errors with their texts."""

import collections
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.finetune.task_data import sample_records
from bertjax.metrics.classification import scores_from_counts
from bertjax.pages.page import Section, Token
from bertjax.report.run_record import Run
from bertjax.tasks.task import Task

TITLE = 'Errors on dev'
_WORST = 12
_MATRIX = 20  # the maximum number of classes in a confusion table
_NOTHING = '(nothing)'


def errors_section(run: Run, task: Task, folder: pathlib.Path, about: str = '') -> Section:
    """Returns the section that reviews a finished run's predictions for dev.

    `folder` has predictions/: it is the workdir, or the folder of a trial of a sweep, which `about` then describes.
    Raises a UserError if the records cannot be read, or if the predictions are damaged or for other records.
    """
    path = folder / 'predictions' / 'dev.jsonl'
    # Without results, the predictions may be from before an extension of the run, or of another checkpoint.
    has_results = folder != run.folder or 'dev' in (run.results() or {'splits': {}})['splits']
    if not path.exists() or not has_results:
        note = 'There are no results for dev yet: a finished run and run=evaluate write them.'
        return Section('errors', TITLE, note=note)
    records = sample_records(task.records('dev'), run.config['max_eval_records'])
    expected, fix = f'the predictions for {len(records):,} records of dev', 'use run=evaluate to write them again'
    try:
        rows = list(map(json.loads, path.read_text(encoding='utf-8').rstrip('\n').split('\n')))
    except ValueError as error:
        raise UserError(str(path), f'no JSON lines ({error})', expected, fix) from None
    if len(records) != len(rows):
        raise UserError(str(path), f'{len(rows):,} lines', expected, f'{fix}, or restore config.max_eval_records')
    judgments = list(task.judgments(records, rows))
    wrong = sorted((judgment for judgment in judgments if judgment.error > 0), key=lambda judgment: -judgment.error)
    counts = collections.Counter(pair for judgment in judgments for pair in judgment.classes)
    worst = [
        ([Token(judgment.true, 'right', 'true'), Token(judgment.predicted, 'wrong', 'predicted')], judgment.texts)
        for judgment in wrong[:_WORST]
    ]
    data = {**_classes(counts, task), 'records': len(judgments), 'wrong': len(wrong), 'worst': worst}
    return Section('errors', TITLE, data, about)


def _classes(counts: Mapping[tuple[str, str], int], task: Task) -> dict[str, Any]:
    """Returns the scores and counts of each class, and the confusion table if it has at most _MATRIX rows."""
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
