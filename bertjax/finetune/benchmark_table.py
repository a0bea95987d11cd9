"""The results of all GLUE tasks: the zip for the GLUE server, the averages and the table."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bertjax.files.atomic import write_atomic, write_zip
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.finetune.results import RESULTS, STEP
from bertjax.finetune.sweep import SWEEP
from bertjax.metrics import glue
from bertjax.metrics.glue import Figures
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.terminal import make_table
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import TRIALS

_MNLI_SPLITS = {'dev': 'matched', 'dev_mismatched': 'mismatched'}
SUBMISSION = 'submission.zip'


def is_finished(folder: pathlib.Path) -> bool:
    """Returns whether the run, or each run of the sweep, in the workdir of a task is finished."""
    if (folder / TRIALS).exists():  # run=evaluate may write results.json for an unfinished sweep
        done = {path.parent.name for path in folder.glob(f'{TRIALS}/*/{RESULTS}')}
        return bool(read_json_or_none(folder / SWEEP, lambda summary: done >= {summary['best'], *summary['trials']}))
    return (folder / RESULTS).exists() and STEP not in read_recorded_results(folder / RESULTS)


def read_task_results(folder: pathlib.Path) -> dict[str, Any]:
    """Reads results.json of a finished run, or of the best run of a sweep."""
    if (folder / TRIALS).exists():
        best = read_json_object(folder / SWEEP, 'start the sweep again')['best']
        return {**read_recorded_results(folder / TRIALS / best / RESULTS), 'best_of_sweep': best}
    return read_recorded_results(folder / RESULTS)


def write_submission(folder: pathlib.Path, server_splits: Mapping[str, Sequence[str]]) -> list[str]:
    """Writes the predictions for the GLUE server, if there are any, to WORKDIR/submission.zip.

    `server_splits` has the splits to include for each task of this run. Of a finished task of an earlier run, all
    existing predictions are included. Returns the names of the files that the server expects but the zip lacks.
    """
    server_files, texts = {}, {}
    for task, row in TASKS.items():
        model_task = 'mnli' if task == 'ax' else task
        server_files |= {file.server: (model_task, split) for split, file in row.splits.items() if file.server}
    for name, (task, split) in sorted(server_files.items()):
        path = folder / task / 'predictions' / split / name
        included = split in server_splits[task] if task in server_splits else is_finished(folder / task)
        if included and path.exists():
            texts[name] = path.read_text(encoding='utf-8')
    if texts:
        write_zip(folder / SUBMISSION, texts)
    return [name for name in sorted(server_files) if name not in texts]


def write_summary(folder: pathlib.Path, missing_data: Mapping[str, str]) -> tuple[dict[str, Any], list[list[str]]]:
    """Writes the summary to results.json and table.md in the workdir. Returns the result of `summarize`."""
    summary, rows = summarize(folder, missing_data)
    write_atomic(folder / RESULTS, json.dumps(summary, indent=2) + '\n')
    lines = ['| task | dev | figures | score |', '|---|---|---|---|']
    lines += [f'| {" | ".join(row)} |' for row in rows]
    lines += [f'| | | {name} | {value} |' for name, value in averages(summary)]
    write_atomic(folder / 'table.md', '\n'.join(lines) + '\n')
    return summary, rows


def summarize(folder: pathlib.Path, missing_data: Mapping[str, str]) -> tuple[dict[str, Any], list[list[str]]]:
    """Returns the content of results.json with all finished tasks, and a table row for each of the nine tasks.

    A row has the title of the task, its metrics, the names of the metrics, and its score.
    """
    by_task = {task: read_task_results(folder / task) for task in glue.OFFICIAL if is_finished(folder / task)}
    figures = _figures(by_task)
    summary = {
        'tasks': {task: {**results, 'task_score': glue.task_score(figures, task)} for task, results in by_task.items()},
        'missing_data': dict(missing_data),
        'averages': {
            'glue': glue.official_average(figures),
            'glue_without_wnli': glue.official_average(figures, without=('wnli',)),
            'bert_paper': glue.paper_average(figures),
        },
        'averaged_tasks': len(by_task),
    }
    rows = [
        _row(figures, task, by_task[task])
        if task in by_task
        else [TASKS[task].title, '-', 'no data' if task in missing_data else 'not run', '-']
        for task in glue.OFFICIAL
    ]
    return summary, rows


def _figures(by_task: Mapping[str, Mapping[str, Any]]) -> Figures:
    return {task: results['splits'] for task, results in by_task.items()}


def _row(figures: Figures, task: str, results: Mapping[str, Any]) -> list[str]:
    by_split = glue.task_figures(figures, task)
    values = ['/'.join(map(_percent, split_figures)) for split_figures in by_split.values()]
    names = '/'.join(glue.OFFICIAL[task])
    if task in glue.SPLITS and by_split:
        only = '' if len(by_split) == len(glue.SPLITS[task]) else 'ONLY '
        names += f', {only}{" and ".join(_MNLI_SPLITS[split] for split in by_split)}'
    part = f', {results["parts"]["dev"]}' if 'dev' in results.get('parts', {}) else ''
    return [TASKS[task].title, ' and '.join(values) or '-', names + part, _percent(glue.task_score(figures, task))]


def averages(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name, percentage) of each average. If tasks or columns are missing, the name says so."""
    count, columns = summary['averaged_tasks'], len(glue.paper_columns(_figures(summary['tasks'])))
    incomplete = '' if count == len(glue.OFFICIAL) else f', ONLY {count} of {len(glue.OFFICIAL)} tasks'
    without_columns = '' if columns == glue.PAPER_COLUMNS else f', ONLY {columns} of {glue.PAPER_COLUMNS} columns'
    names = {
        'glue': f'GLUE score{incomplete}',
        'glue_without_wnli': 'the same without WNLI',
        'bert_paper': f'as in table 1 of the BERT paper{without_columns}',
    }
    return [(names[key], _percent(value)) for key, value in summary['averages'].items()]


def benchmark_table(rows: Sequence[Sequence[str]], summary: Mapping[str, Any]) -> Table:
    """Returns a table with a row for each task and each average, in per cent."""
    table = make_table('GLUE, dev', 'task', 'dev', 'figures', 'score')
    table.columns[2].justify = 'left'
    for row in rows:
        table.add_row(*row)
    table.add_section()
    for name, value in averages(summary):
        table.add_row('', '', name, value)
    return table


def _percent(value: float | None) -> str:
    return '-' if value is None else f'{100 * value:.1f}'
