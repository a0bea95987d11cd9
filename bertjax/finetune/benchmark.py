"""The tasks of GLUE as one benchmark: their settings and order, the finished tasks, and the results of all tasks."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from bertjax.config.finetuning import FinetuningKeys
from bertjax.config.ranges import integer
from bertjax.config.resume import changed_keys
from bertjax.config.schema import MACHINE, OUTPUT, VERB, Key, keys_of
from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic, write_zip
from bertjax.files.paths import real_path
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.finetune.results import RESULTS, STEP
from bertjax.metrics import glue
from bertjax.metrics.glue import Figures
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.terminal import make_table
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import REQUEST, SWEEP, TRIALS

ALL = 'all'
SUBMISSION = 'submission.zip'
_KEY = 'config.benchmark'
# The keys that config.benchmark may set for a single task, with their defaults and ranges.
_TASK_KEYS = {name: keys_of(FinetuningKeys)[name] for name in ('learning_rate', 'epochs', 'batch_size', 'seed', 'init')}
_TASK_KEYS['seeds'] = Key(1, integer(1, 1000), 'the number of seeds')
_MNLI_SPLITS = {'dev': 'matched', 'dev_mismatched': 'mismatched'}


def recipe_of_task(recipe: str, task: str) -> str:
    """Returns the recipe of a single task of the benchmark `recipe`, for commands in the workdir of the task."""
    is_saved = recipe.endswith(('.yaml', '.yml', '.json'))  # a file that takes no argument
    return f'glue:{task}' if is_saved else f'{recipe.partition(":")[0]}:{task}'


def parse_tasks(text: str, key: str = 'config.task.task') -> list[str]:
    """Parses 'all' or names such as 'rte,cola' into names in the order of TASKS; errors name `key`."""
    known = list(TASKS)
    names = [re.sub('[-_]', '', name.strip().lower()) for name in text.split(',')]
    names = known if names == [ALL] else names
    for name in names:
        if name not in known:
            fix = suggestion(name, known) or ('correct it' if key == _KEY else f'or {ALL!r}')
            raise UserError(key, repr(name), 'one of ' + ', '.join(known), fix)
    return [name for name in known if name in names]


def parse_task_overrides(text: str, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parses config.benchmark, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5', into {task: {key: value}}.

    Raises a UserError for a wrong syntax, an unknown or repeated task or key, and a value out of range.
    """
    form = "TASK:KEY=VALUE,KEY=VALUE;TASK:…, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5'"
    overrides: dict[str, dict[str, Any]] = {}
    for part in filter(None, (part.strip() for part in text.split(';'))):
        name, colon, settings = part.partition(':')
        names = parse_tasks(name, _KEY) if colon and ',' not in name else []
        task = names[0] if len(names) == 1 else None
        if task is None or task in overrides:
            raise UserError(_KEY, repr(part), form if task is None else 'each task once', 'correct it')
        if task not in tasks:
            raise UserError(_KEY, repr(task), 'a task that is run: ' + ', '.join(tasks), 'leave it out')
        overrides[task] = {}
        for item in settings.split(','):
            key, equals, value = (text.strip() for text in item.partition('='))
            if key not in _TASK_KEYS or not equals:
                fix = 'add the value' if key in _TASK_KEYS else suggestion(key, _TASK_KEYS) or 'leave it out'
                raise UserError(_KEY, repr(item), 'KEY=VALUE with KEY in (' + ', '.join(_TASK_KEYS) + ')', fix)
            if key in overrides[task]:
                raise UserError(_KEY, repr(part), 'each key once', 'leave one value out')
            try:
                parsed = type(_TASK_KEYS[key].default)(value)
            except ValueError:
                parsed = None
            if parsed is None or not _TASK_KEYS[key].allowed.contains(parsed):
                raise UserError(f'{_KEY}: {task}:{key}', repr(value), _TASK_KEYS[key].allowed.words, 'correct it')
            overrides[task][key] = parsed
        if {'seed', 'seeds'} <= overrides[task].keys():
            raise UserError(_KEY, repr(part), 'seed or seeds', 'leave one out')
    return overrides


def order_tasks(overrides: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Returns the tasks in execution order: a task whose `init` is another task runs after that task.

    Raises a UserError if the dependencies have a cycle, or a task depends on a task that is not run.
    """
    order: list[str] = []
    pending = list(tasks)
    while pending:
        ready = [
            task for task in pending if (init := overrides.get(task, {}).get('init')) not in TASKS or init in order
        ]
        if not ready:
            blocked = next((task for task in pending if overrides[task]['init'] not in pending), pending[0])
            init = overrides[blocked]['init']
            expected = 'a task that is run before: ' + (', '.join(order) or 'none')
            raise UserError(f'{_KEY}: {blocked}:init', repr(init), expected, 'name the folder of a checkpoint')
        order.append(ready[0])
        pending.remove(ready[0])
    return order


def read_benchmark_data(tasks: Mapping[str, GlueTask], data: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Reads the files of all tasks that have data, so that a mistake in any file is reported before training.

    Returns {task: its existing splits that the GLUE server scores} for the tasks with training and dev data, and {task:
    a description of the missing data} for the other tasks. Raises a UserError if no task has data, or a row is
    malformed.
    """
    missing_data = {name: missing for name, task in tasks.items() if (missing := task.describe_missing())}
    server_splits = {name: task.server_splits() for name, task in tasks.items() if name not in missing_data}
    if not server_splits:
        titles = ', '.join(TASKS[name].title for name in missing_data)
        found = f'{data!r}, which lacks the training or dev data of {titles}'
        fix = "give the folder that GLUE's download script wrote"
        raise UserError('config.data', found, 'the files of at least one task', fix)
    for name, splits in server_splits.items():
        for split in dict.fromkeys(('train', *tasks[name].splits(), *splits)):
            tasks[name].records(split)
    return server_splits, missing_data


def record_request(folder: pathlib.Path, configs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Records the config of each task in the benchmark's workdir. Returns the finished tasks that need not run again.

    A sweep runs again after a change of a sweep key, and a single run after a change of an OUTPUT key. The old config
    stays recorded until `record_result` is called, so that a killed process does not hide the change. Raises a
    UserError if any other key of a finished task has changed, except MACHINE and VERB keys and the spelling of the path
    config.data.
    """
    path = folder / REQUEST
    recorded = read_json_object(path, 'restore the file, or give another --workdir') if path.exists() else {}
    finished, outdated = set(), set()
    for task, config in configs.items():
        if not is_finished(folder / task):
            continue
        changed = changed_keys(recorded[task], config) if task in recorded else {}
        changed = {
            key: (old, new, change)
            for key, (old, new, change) in changed.items()
            if change not in (MACHINE, VERB) and not (key == 'data' and real_path(old) == real_path(new))
        }
        for key, (old, new, change) in changed.items():
            only_adds_work = change is OUTPUT and not (folder / task / TRIALS).exists()  # a sweep refuses the change
            if not only_adds_work and not key.startswith('sweep.'):
                fix = f'restore the old value, or move {folder / task} away to run it again'
                raise UserError(f'config.{key}', f'{new!r} for {task}', f'{old!r}, as when the task was finished', fix)
        (outdated if changed else finished).add(task)
    _write_request(path, recorded | {task: config for task, config in configs.items() if task not in outdated})
    return finished


def record_result(folder: pathlib.Path, task: str, config: Mapping[str, Any]) -> None:
    """Records that a task and its predictions have finished with this config."""
    path = folder / REQUEST
    _write_request(path, {**read_json_object(path, 'restore the file, or give another --workdir'), task: config})


def _write_request(path: pathlib.Path, configs: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(configs, indent=2, sort_keys=True, ensure_ascii=False) + '\n')


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

    `server_splits` has the splits to include for each task of this run. For other finished tasks, all existing
    predictions are included. Returns the names of the files that the server expects but the zip lacks.
    """
    server_files, texts = {}, {}
    for task, row in TASKS.items():
        server_files |= {file.server: (task, split) for split, file in row.splits.items() if file.server}
    for name, (task, split) in sorted(server_files.items()):
        path = folder / task / 'predictions' / split / name
        included = split in server_splits[task] if task in server_splits else is_finished(folder / task)
        if included and path.exists():
            texts[name] = path.read_text(encoding='utf-8')
    if texts:
        write_zip(folder / SUBMISSION, texts)
    else:  # an existing zip is of earlier models
        (folder / SUBMISSION).unlink(missing_ok=True)
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
    names += f', {results["parts"]["dev"]}' if 'dev' in results.get('parts', {}) else ''
    names += ', the best run of a sweep' if 'best_of_sweep' in results else ''
    return [TASKS[task].title, ' and '.join(values) or '-', names, _percent(glue.task_score(figures, task))]


def averages(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name, percentage) of each average. The name says if tasks or `glue.paper_columns` are missing."""
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
