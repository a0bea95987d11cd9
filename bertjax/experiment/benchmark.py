"""All tasks of GLUE as one experiment: what each of them is run with, which are finished, and the table of them all."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from bertjax.config import flatten, suggestion
from bertjax.errors import UserError
from bertjax.experiment.recorded import recorded_results
from bertjax.experiment.results import RESULTS, STEP
from bertjax.experiment.sweep import SWEEP
from bertjax.experiment.workdir import TRIALS
from bertjax.files.atomic import write_atomic, write_zip
from bertjax.files.whole import read_json_object
from bertjax.metrics.glue import OFFICIAL, Figures, official_average, paper_average, task_figures, task_score
from bertjax.ranges import whole
from bertjax.recipe_ranges import FINETUNING
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.sentence.glue_table import TASKS

ALL = 'all'
SUBMISSION = 'submission.zip'
_TABLE = 'table.md'
_ASKED = 'benchmark.json'  # in the workdir: what each task was begun with
_KEY = 'config.benchmark'
# What a task may have of its own, and what it may be.
_OWN = {key: FINETUNING[key] for key in ('learning_rate', 'epochs', 'batch_size', 'seed', 'init')}
_OWN['seeds'] = whole(1, 1000)
_TYPES = {'learning_rate': float, 'epochs': float, 'init': str}  # the others are whole numbers
# A finished task needs no run where these differ; a name with a dot behind it is all keys below it.
_FREE = ('run', 'mesh.', 'card.', 'benchmark', 'ensemble', 'step', 'split', 'input', 'eval_batch_size', 'log_every')
_FREE += ('checkpoint_keep', 'task.task')
_MORE = ('sweep.', 'export', 'export_formats')  # with other values it is run again, which does what is not done yet


def chosen_tasks(text: str) -> list[str]:
    """The tasks of config.task.task: 'all', or names with commas between, in the order of GLUE's table.

    Raises:
      UserError: one that GLUE does not have.
    """
    known = [name for name in TASKS if name != 'ax']
    asked = known if text == ALL else [re.sub('[-_]', '', name.strip().lower()) for name in text.split(',')]
    for name in asked:
        if name not in known:
            mend = suggestion(name, known) or f'or {ALL!r}'
            raise UserError('config.task.task', repr(name), 'one of ' + ', '.join(known), mend)
    return [name for name in known if name in asked]


def own_settings(text: str, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{task: {key: value}} of config.benchmark, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5'.

    Raises:
      UserError: another form, task or key, or a value that the key cannot have.
    """
    form = "TASK:KEY=VALUE,KEY=VALUE;TASK:…, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5'"
    found: dict[str, dict[str, Any]] = {}
    for part in filter(None, (part.strip() for part in text.split(';'))):
        name, colon, settings = part.partition(':')
        (task,) = chosen_tasks(name) if colon and ',' not in name else (None,)
        if task is None or task in found:
            raise UserError(_KEY, repr(part), form if task is None else 'each task once', 'correct it')
        if task not in tasks:
            raise UserError(_KEY, repr(task), 'a task that is run: ' + ', '.join(tasks), 'leave it out')
        found[task] = {}
        for item in settings.split(','):
            key, equals, value = (text.strip() for text in item.partition('='))
            if key not in _OWN or not equals:
                mend = suggestion(key, _OWN) or 'leave it out'
                raise UserError(_KEY, repr(item), 'one of ' + ', '.join(_OWN) + ' and its value', mend)
            try:
                parsed = _TYPES.get(key, int)(value)
            except ValueError:
                parsed = None
            if parsed is None or not _OWN[key].holds(parsed):
                raise UserError(f'{_KEY}: {task}:{key}', repr(value), _OWN[key].words, 'correct it')
            found[task][key] = parsed
    return found


def ordered(own: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """The tasks in the order in which they are run: one whose init is another task comes behind it.

    Raises:
      UserError: two that wait for each other, or one for a task that is not run.
    """
    order: list[str] = []
    waiting = list(tasks)
    while waiting:
        ready = [task for task in waiting if (init := own.get(task, {}).get('init')) not in TASKS or init in order]
        if not ready:
            init = own[waiting[0]]['init']
            expected = 'a task that is run before: ' + (', '.join(order) or 'none')
            raise UserError(f'{_KEY}: {waiting[0]}:init', repr(init), expected, 'name the folder of a checkpoint')
        order.append(ready[0])
        waiting.remove(ready[0])
    return order


@dataclasses.dataclass(frozen=True)
class Available:
    """What there is of a benchmark's data.

    Attributes:
      tasks: with data to train on and to be judged by.
      lacking: {the others: what is missing}.
      judged: {task: the splits that the server judges and that are there}.
    """

    tasks: list[str]
    lacking: dict[str, str]
    judged: dict[str, list[str]]


def available(tasks: Sequence[str], build: Mapping[str, GlueTask], data: str) -> Available:
    """Looks for the files of all tasks, and reads those that are there: what is wrong in the last one is told now.

    Raises:
      UserError: no task has any, or a malformed row.
    """
    lacking: dict[str, str] = {}
    for name in tasks:
        missing = build[name].lacking()
        if missing:
            lacking[name] = missing
    there = [name for name in tasks if name not in lacking]
    if not there:
        found = f'{data!r}, which lacks what to train on or dev of ' + ', '.join(TASKS[name].title for name in lacking)
        mend = "give the folder that GLUE's download script wrote"
        raise UserError('config.data', found, 'the files of a task at least', mend)
    judged = {name: build[name].judged() for name in there}
    for name in there:
        for split in dict.fromkeys(('train', *build[name].splits(), *judged[name])):
            build[name].records(split)
    return Available(there, lacking, judged)


def note_asked(folder: pathlib.Path, configs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The tasks that are finished with their configs of today; what each is begun with is written down.

    Of a finished task that is to be run again it is not, until `note_finished`: a kill in between changes nothing.

    Args:
      folder: the workdir of all.
      configs: plain, by task.

    Raises:
      UserError: a task that was finished with other settings.
    """
    path = folder / _ASKED
    before = read_json_object(path, 'restore the file, or give another --workdir') if path.exists() else {}
    finished, again = set(), set()
    for task, config in configs.items():
        if not is_finished(folder / task):
            continue
        then, now = flatten(before.get(task, {})), flatten(config)
        changed = [key for key in now if not _among(key, _FREE) and now[key] != then.get(key, now[key])]
        other = next((key for key in changed if not _among(key, _MORE)), None)
        if other:
            found = f'{now[other]!r} for {task}'
            mend = f'restore the former value, or move {folder / task} away to run it again'
            raise UserError(f'config.{other}', found, f'{then[other]!r}, with which it was finished', mend)
        (again if changed else finished).add(task)
    _write_asked(path, before | {task: config for task, config in configs.items() if task not in again})
    return finished


def note_finished(folder: pathlib.Path, task: str, config: Mapping[str, Any]) -> None:
    """Writes down what a task was finished with, its predictions among it."""
    path = folder / _ASKED
    _write_asked(path, {**read_json_object(path, 'restore the file, or give another --workdir'), task: config})


def _write_asked(path: pathlib.Path, configs: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(configs, indent=2, sort_keys=True, ensure_ascii=False) + '\n')


def _among(key: str, names: Sequence[str]) -> bool:
    return any(key.startswith(name) if name.endswith('.') else key == name for name in names)


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
    return (folder / _ASKED).exists()


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
