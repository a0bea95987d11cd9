"""The sections with the results of a run, an ensemble or a sweep, and with the errors on dev."""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.finetune.results import RESULTS, results_table
from bertjax.finetune.task_data import sample_records
from bertjax.finetune.trials import Trial, dev_score, summarize, sweep_table
from bertjax.metrics.classification import scores_from_counts
from bertjax.pages.charts import COLORS, Chart, Curve
from bertjax.pages.page import Section, Token, link
from bertjax.report.curves import make_curves
from bertjax.report.run_record import Run
from bertjax.tasks.task import Task
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import TRIALS
from bertjax.writers.console import format_value
from bertjax.writers.jsonl import read_rows

_CURVES = 12  # the maximum number of trials in the chart of the training loss
_WORST = 12  # the maximum number of errors with their texts
_MATRIX = 20  # the maximum number of rows in a confusion table
_NOTHING = '(nothing)'
Finished = Sequence[tuple[Trial, Mapping[str, Any]]]


def figures_section(run: Run) -> Section:
    """Returns the section with the table of results.json: a column for each split and a row for each metric."""
    results = run.results()
    if not results:
        return Section('figures', 'Figures', note='The run is not finished: there are no results yet.')
    columns = results_table(results).columns
    table = {
        'heads': [column.header for column in columns],
        'rows': zip(*(column.cells for column in columns), strict=True),
        'marked': [i for i, name in enumerate(columns[0].cells) if name.endswith('*')],
    }
    return Section('figures', 'Figures', table, 'The marked row is the score of the run.')


def members_section(run: Run) -> Section | None:
    """Returns the scores of an ensemble and of its models; None if the run is not an ensemble or has no results."""
    results = run.results() or {}
    if len(run.models) < 2 or 'splits' not in results:
        return None
    score, alone = results.get('score', ''), results.get('alone', {})
    splits = [split for split in results['splits'] if split in alone]
    rows = []
    for member in run.models:
        page, name = member / 'report.html', str(member)
        title = link(name, os.path.relpath(page, run.folder)) if page.exists() else name
        rows.append((title, *(format_value(alone[split].get(name)) for split in splits)))
    rows.append(('together', *(format_value(results['splits'][split].get(score)) for split in splits)))
    heads = ['', *(f'{score} on {split}' for split in splits)]
    return Section('members', 'Members', {'heads': heads, 'rows': rows, 'marked': [len(run.models)]})


def finished_trials(run: Run) -> Finished:
    """Returns the finished trials of a sweep, each with its results. Trials with damaged results are omitted."""
    names, trials = [field.name for field in dataclasses.fields(Trial)], []
    for path in (run.folder / TRIALS).glob(f'*/{RESULTS}'):
        with contextlib.suppress(UserError, KeyError):
            results = read_recorded_results(path)
            dev_score(results)  # raises an error for damaged results
            trials.append((Trial(**{name: results[name] for name in names}), results))
    return sorted(trials, key=lambda item: item[0])


def sweep_section(run: Run, finished: Finished) -> Section:
    """Returns the section with charts, a table of the settings (averaged over seeds), and a table of the trials."""
    if not finished:
        return Section('sweep', 'Sweep', note='No run of the sweep is finished yet.')
    score = finished[0][1]['score']
    summary = summarize(finished, score)
    ordered = sorted(finished, key=lambda item: -dev_score(item[1]))
    scores = {trial: dev_score(results) for trial, results in finished}
    best = ordered[0][0]
    of_best = {name: value for name, value in vars(best).items() if name != 'seed'}
    splits = list(dict.fromkeys(split for _, results in finished for split in results['splits']))
    data = {
        'tiles': {f'best {score} on dev': (format_value(scores[best]), best.name), 'runs': (len(finished), 'finished')},
        'charts': [
            Chart(
                f'{score} on dev',
                _score_curves(summary['settings'], scores),
                score,
                x='learning rate',
                ticks=sorted({trial.learning_rate for trial in scores}),
            ),
            *_loss_charts(run, list(scores)),
        ],
        'settings': zip(*(column.cells for column in sweep_table(summary).columns), strict=True),
        'best_setting': [i for i, setting in enumerate(summary['settings']) if of_best.items() <= setting.items()],
        'heads': ['run', *(f'{score} on {split}' for split in splits)],
        'trials': [
            (trial.name, *(format_value(results['splits'].get(split, {}).get(score)) for split in splits))
            for trial, results in ordered
        ],
    }
    return Section('sweep', 'Sweep', data)


def _score_curves(settings: Sequence[Mapping[str, Any]], scores: Mapping[Trial, float]) -> list[Curve]:
    """Returns curves of the score by learning rate, one for each combination of the other settings.

    A curve shows the median over the seeds. If there are several seeds, points of the same color show the trials.
    """
    curves, colors = [], itertools.cycle(COLORS)
    shape = lambda setting: (setting['trainable'], setting['batch_size'], setting['epochs'])  # noqa: E731
    for key, group in itertools.groupby([setting for setting in settings if setting['median'] is not None], key=shape):
        color, name = next(colors), f'{key[0]}, batch {key[1]}' + (f', {key[2]:g} epochs' if key[2] else '')
        medians = {setting['learning_rate']: setting['median'] for setting in group}
        curves.append(Curve(f'{name}: median', list(medians), list(medians.values()), color, 'dots'))
        shape_scores = {trial: score for trial, score in scores.items() if trial.shape == key and math.isfinite(score)}
        if len(shape_scores) > len(medians):
            texts = [
                f'{name}\nrate {trial.learning_rate:g}, seed {trial.seed}\n{x:.4f}' for trial, x in shape_scores.items()
            ]
            rates = [trial.learning_rate for trial in shape_scores]
            curves.append(Curve(f'{name}: each run', rates, list(shape_scores.values()), color, 'points', texts))
    return curves


def _loss_charts(run: Run, trials: Sequence[Trial]) -> list[Chart]:
    curves, colors = [], itertools.cycle(COLORS)
    for trial in trials[:_CURVES]:
        rows = read_rows(run.folder / TRIALS / trial.name / 'metrics.jsonl')
        curves += make_curves(trial.name, [row for row in rows if row['split'] == 'train'], 'loss', next(colors))
    first = f', the first {_CURVES} runs' if len(trials) > _CURVES else ''
    return [Chart(f'Training loss{first}', curves, 'loss')] if curves else []


def errors_section(run: Run, task: Task, folder: pathlib.Path, about: str = '') -> Section:
    """Returns the section that reviews a finished run's predictions for dev.

    `folder` has predictions/: it is the workdir, or the folder of a trial of a sweep, which `about` then describes.
    Raises a UserError if the records cannot be read, or if the predictions are damaged or for other records.
    """
    path = folder / 'predictions' / 'dev.jsonl'
    # Without results, the predictions may be from another checkpoint, or from before the run was extended.
    has_results = folder != run.folder or 'dev' in (run.results() or {'splits': {}})['splits']
    if not path.exists() or not has_results:
        note = (
            'There are no results for dev yet: a finished run and run=evaluate write them.'
            if 'dev' in task.splits()
            else 'The data have no labeled dev split.'
        )
        return Section('errors', 'Errors on dev', note=note)
    records = sample_records(task.records('dev'), run.config['max_eval_records'])
    expected, fix = f'the predictions for {len(records):,} records of dev', 'use run=evaluate to write them again'
    try:
        rows = list(map(json.loads, path.read_text(encoding='utf-8').rstrip('\n').split('\n')))
    except ValueError as error:
        raise UserError(str(path), f'no JSON lines ({error})', expected, fix) from None
    if len(records) != len(rows):
        raise UserError(str(path), f'{len(rows):,} lines', expected, f'{fix}, or restore config.max_eval_records')
    try:
        judgments = list(task.judgments(records, rows))
    except (LookupError, TypeError, ValueError) as error:
        found = f'predictions for other records, or by another version of bertjax ({error!r})'
        raise UserError(str(path), found, expected, fix) from None
    wrong = sorted((judgment for judgment in judgments if judgment.error > 0), key=lambda judgment: -judgment.error)
    counts = collections.Counter(pair for judgment in judgments for pair in judgment.classes)
    worst = [
        ([Token(judgment.true, 'right', 'true'), Token(judgment.predicted, 'wrong', 'predicted')], judgment.texts)
        for judgment in wrong[:_WORST]
    ]
    data = {**_classes(counts, task), 'records': len(judgments), 'wrong': len(wrong), 'worst': worst}
    return Section('errors', 'Errors on dev', data, about)


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
