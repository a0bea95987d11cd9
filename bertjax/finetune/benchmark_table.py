"""What all tasks of GLUE came to: the zip for the server, the averages, the table."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from bertjax.files.atomic import write_atomic, write_zip
from bertjax.files.small_files import read_json_object
from bertjax.finetune.results import RESULTS, STEP
from bertjax.finetune.sweep import SWEEP
from bertjax.metrics.glue import OFFICIAL, Figures, official_average, paper_average, task_figures, task_score
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.workdir.files import recorded_results
from bertjax.workdir.lock import TRIALS

SUBMISSION = 'submission.zip'
REQUEST = 'benchmark.json'  # in the workdir: what each task was begun with
_TABLE = 'table.md'


def is_finished(folder: pathlib.Path) -> bool:
    """Whether the run or the sweep of a task's workdir is."""
    if (folder / SWEEP).exists():
        return True
    return (folder / RESULTS).exists() and STEP not in recorded_results(folder / RESULTS)


def results_of(folder: pathlib.Path) -> dict[str, Any]:
    """results.json of a finished run, or of the best run of a sweep."""
    if (folder / SWEEP).exists():
        best = read_json_object(folder / SWEEP, 'start the sweep again')['best']
        return {**recorded_results(folder / TRIALS / best / RESULTS), 'best_of_sweep': best}
    return recorded_results(folder / RESULTS)


def write_submission(folder: pathlib.Path, judged: Mapping[str, Sequence[str]]) -> list[str]:
    """WORKDIR/submission.zip of the predictions of all finished tasks; returns which of the server's files it lacks.

    Args:
      folder: the workdir of all.
      judged: of the tasks of this call, the splits that the server judges; of others what is there is taken.
    """
    wanted, files = {}, {}
    for task, row in TASKS.items():
        of = 'mnli' if task == 'ax' else task
        wanted |= {place.server: (of, split) for split, place in row.splits.items() if place.server}
    for name, (task, split) in sorted(wanted.items()):
        path = folder / task / 'predictions' / split / name
        wanted_here = split in judged[task] if task in judged else is_finished(folder / task)
        if wanted_here and path.exists():
            files[name] = path.read_text(encoding='utf-8')
    if files:
        write_zip(folder / SUBMISSION, files)
    return [name for name in sorted(wanted) if name not in files]


def write_summary(folder: pathlib.Path, lacking: Mapping[str, str]) -> tuple[dict[str, Any], list[list[str]]]:
    """WORKDIR/results.json and table.md of all finished tasks; returns what `summarise` does."""
    summary, rows = summarise(folder, lacking)
    write_atomic(folder / RESULTS, json.dumps(summary, indent=2) + '\n')
    write_atomic(folder / _TABLE, _markdown(rows, summary))
    return summary, rows


def is_benchmark(folder: pathlib.Path) -> bool:
    """Whether a workdir is that of a benchmark, finished or not."""
    return (folder / REQUEST).exists()


def summarise(folder: pathlib.Path, lacking: Mapping[str, str]) -> tuple[dict[str, Any], list[list[str]]]:
    """The figures of all finished tasks.

    Returns:
      What results.json says, and the rows of the table, of all nine: task, figures, their names, score.
    """
    found = {task: results_of(folder / task) for task in OFFICIAL if is_finished(folder / task)}
    figures: Figures = {task: results['splits'] for task, results in found.items()}
    summary = {
        'tasks': {task: {**results, 'task_score': task_score(figures, task)} for task, results in found.items()},
        'lacking': dict(lacking),
        'averages': {
            'glue': official_average(figures),
            'glue_without_wnli': official_average(figures, without=('wnli',)),
            'bert_paper': paper_average(figures),
        },
        'averaged_tasks': len(found),
    }
    rows = [
        _row(figures, task, found[task])
        if task in found
        else [TASKS[task].title, '-', 'no data' if task in lacking else 'not run', '-']
        for task in OFFICIAL
    ]
    return summary, rows


def _row(figures: Figures, task: str, results: Mapping[str, Any]) -> list[str]:
    values = ['/'.join(map(_percent, of_split)) for of_split in task_figures(figures, task).values()]
    named = '/'.join(OFFICIAL[task]) + (', matched and mismatched' if len(values) > 1 else '')
    part = f', {results["parts"]["dev"]}' if 'dev' in results.get('parts', {}) else ''
    return [TASKS[task].title, ' and '.join(values), named + part, _percent(task_score(figures, task))]


def averages(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The averages in words and in per cent; with fewer than all tasks that is said."""
    count = summary['averaged_tasks']
    fewer = '' if count == len(OFFICIAL) else f', ONLY {count} of {len(OFFICIAL)} tasks'
    named = {
        'glue': f'GLUE score{fewer}',
        'glue_without_wnli': 'the same without WNLI',
        'bert_paper': 'as in table 1 of the BERT paper',
    }
    return [(named[key], _percent(value)) for key, value in summary['averages'].items()]


def benchmark_table(rows: Sequence[Sequence[str]], summary: Mapping[str, Any]) -> Table:
    """A row a task, then the averages, in per cent."""
    table = Table(title='GLUE, dev', title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ('task', 'dev', 'figures', 'score'):
        table.add_column(name, justify='right' if name in ('dev', 'score') else 'left')
    for row in rows:
        table.add_row(*row)
    table.add_section()
    for name, value in averages(summary):
        table.add_row('', '', name, value)
    return table


def _markdown(rows: Sequence[Sequence[str]], summary: Mapping[str, Any]) -> str:
    lines = ['| task | dev | figures | score |', '|---|---|---|---|']
    lines += [f'| {" | ".join(row)} |' for row in rows]
    lines += [f'| | | {name} | {value} |' for name, value in averages(summary)]
    return '\n'.join(lines) + '\n'


def _percent(value: float | None) -> str:
    return '-' if value is None else f'{100 * value:.1f}'
