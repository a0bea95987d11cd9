"""Where a tuned model is right and wrong: classes, confusion, the worst errors with their texts."""

import collections
import pathlib
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from bertjax.errors import UserError
from bertjax.finetune.task_data import sample
from bertjax.metrics.classification import scores_of_counts
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.report.run_record import Run, quiet, read_lines
from bertjax.tasks.task import Judgment, Task

_WORST = 12
_MATRIX = 20  # up to so many classes the confusion table is shown
_NOTHING = '(nothing)'


def errors(run: Run, task: Task, folder: pathlib.Path, about: str = '', split: str = 'dev') -> Section:
    """Of the predictions that a finished run wrote in `folder`, beside the records if these are still there.

    Args:
      run: of the workdir.
      task: with what it learned.
      folder: with results.json and predictions/: the workdir, or a trial of a sweep.
      about: whose predictions they are, where it is not the run's.
      split: which.
    """
    path = folder / 'predictions' / f'{split}.jsonl'
    title, rows = f'Errors on {split}', read_lines(path)
    without = lambda note: Section('errors', title, [parts.note(note)])  # noqa: E731
    if rows is None and path.exists():
        return without(f'{path} is damaged; run=evaluate writes it again.')
    if rows is None:
        return without(f'There are no predictions for {split} yet: a finished run writes them.')
    try:
        with quiet():
            records = task.records(split)
    except UserError as error:
        return without(f'The records of {split} cannot be read any more: {error}')
    most = run.config['max_eval_records']
    if 0 < most < len(records):
        records = [records[i] for i in sample(len(records), most)]
    if len(records) != len(rows):
        return without(f'{len(rows):,} predictions, {len(records):,} records of {split}: the data is not what it was.')
    try:
        judged = list(task.reviewed(records, rows))
    except (LookupError, TypeError, ValueError):
        return without(f'The predictions for {split} are not as this version writes them; run=evaluate does.')
    counts = collections.Counter(pair for one in judged for pair in one.classes)
    return Section('errors', title, [*_classes(counts, task), *_worst(judged)], about)


def _classes(counts: collections.Counter, task: Task) -> list[Markup]:
    """Precision, recall and F1 of each class, and the confusion table."""
    if not counts:
        return []
    there = {name for pair in counts for name in pair}
    names = [name for name in task.labels if name in there] + sorted(there - {''} - set(task.labels))
    axis = [*names, ''] if '' in there else names
    table = np.array([[counts[true, predicted] for predicted in axis] for true in axis])
    scores = scores_of_counts(table.diagonal(), table.sum(1), table.sum(0))
    columns = (scores.precision, scores.recall, scores.f1, scores.true, scores.predicted)
    forms = ('.3f', '.3f', '.3f', ',', ',')
    rows = [
        (name, *(format(column[i], form) for column, form in zip(columns, forms, strict=True)))
        for i, name in enumerate(names)
    ]
    of_each = parts.titled('By class', parts.table(['class', 'precision', 'recall', 'F1', 'true', 'predicted'], rows))
    if len(axis) > _MATRIX:
        return [of_each]
    heads = [name or _NOTHING for name in axis]
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    counted = {
        name: [parts.shade(share, f'{n:,}') for share, n in zip(*cells, strict=True)]
        for name, cells in zip(heads, zip(shares, table.tolist(), strict=True), strict=True)
    }
    matrix = parts.shaded(heads, counted, corner='true \\ predicted')
    return [parts.columns(of_each, parts.titled('Confusion', matrix))]


def _worst(judged: Sequence[Judgment]) -> list[Markup]:
    wrong = sorted((one for one in judged if one.wrong > 0), key=lambda one: -one.wrong)
    if not judged:
        return [parts.note('This kind of task has no view of its errors.')]
    if not wrong:
        return [parts.paragraph(f'All {len(judged):,} records are right.')]
    shown = wrong[:_WORST]
    title = f'The worst {len(shown)} of {len(wrong):,} that are not right, of {len(judged):,}'
    legend = parts.legend({'right': 'true', 'wrong': 'predicted, with its probability where it has one'})
    return [parts.titled(title, legend, *map(_error, shown))]


def _error(one: Judgment) -> Markup:
    answers = parts.tokens([parts.Token(one.true, 'right', 'true'), parts.Token(one.predicted, 'wrong', 'predicted')])
    names = len(one.texts) > 1
    texts = (Markup('<b>{}</b> {}').format(name, text) if names else text for name, text in one.texts.items())
    return Markup('<div class="error">{}{}</div>').format(answers, Markup('').join(map(parts.paragraph, texts)))
