"""All tasks of GLUE as one experiment: what each of them is run with, in which order, and which need not be."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.finetuning import FinetuningKeys
from bertjax.config.ranges import whole
from bertjax.config.resume import changed_keys
from bertjax.config.schema import MACHINE, OUTPUT, VERB, Key, keys_of
from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_object
from bertjax.finetune.benchmark_table import REQUEST, is_finished
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.sentence.glue_table import TASKS

ALL = 'all'
_KEY = 'config.benchmark'
# What a task may have of its own, and what it may be.
_OWN = {name: keys_of(FinetuningKeys)[name] for name in ('learning_rate', 'epochs', 'batch_size', 'seed', 'init')}
_OWN['seeds'] = Key(1, whole(1, 1000), 'how many seeds')


def parse_tasks(text: str) -> list[str]:
    """The tasks of config.task.task: 'all', or names with commas between, in the order of GLUE's table.

    Raises:
      UserError: one that GLUE does not have.
    """
    known = [name for name in TASKS if name != 'ax']
    asked = known if text == ALL else [re.sub('[-_]', '', name.strip().lower()) for name in text.split(',')]
    for name in asked:
        if name not in known:
            fix = suggestion(name, known) or f'or {ALL!r}'
            raise UserError('config.task.task', repr(name), 'one of ' + ', '.join(known), fix)
    return [name for name in known if name in asked]


def task_overrides(text: str, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{task: {key: value}} of config.benchmark, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5'.

    Raises:
      UserError: another form, task or key, or a value that the key cannot have.
    """
    form = "TASK:KEY=VALUE,KEY=VALUE;TASK:…, such as 'rte:epochs=10,learning_rate=3e-5;cola:seeds=5'"
    found: dict[str, dict[str, Any]] = {}
    for part in filter(None, (part.strip() for part in text.split(';'))):
        name, colon, settings = part.partition(':')
        (task,) = parse_tasks(name) if colon and ',' not in name else (None,)
        if task is None or task in found:
            raise UserError(_KEY, repr(part), form if task is None else 'each task once', 'correct it')
        if task not in tasks:
            raise UserError(_KEY, repr(task), 'a task that is run: ' + ', '.join(tasks), 'leave it out')
        found[task] = {}
        for item in settings.split(','):
            key, equals, value = (text.strip() for text in item.partition('='))
            if key not in _OWN or not equals:
                fix = suggestion(key, _OWN) or 'leave it out'
                raise UserError(_KEY, repr(item), 'one of ' + ', '.join(_OWN) + ' and its value', fix)
            try:
                parsed = type(_OWN[key].default)(value)
            except ValueError:
                parsed = None
            if parsed is None or not _OWN[key].allowed.holds(parsed):
                raise UserError(f'{_KEY}: {task}:{key}', repr(value), _OWN[key].allowed.words, 'correct it')
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
        missing = build[name].describe_missing()
        if missing:
            lacking[name] = missing
    there = [name for name in tasks if name not in lacking]
    if not there:
        found = f'{data!r}, which lacks what to train on or dev of ' + ', '.join(TASKS[name].title for name in lacking)
        fix = "give the folder that GLUE's download script wrote"
        raise UserError('config.data', found, 'the files of a task at least', fix)
    judged = {name: build[name].server_splits() for name in there}
    for name in there:
        for split in dict.fromkeys(('train', *build[name].splits(), *judged[name])):
            build[name].records(split)
    return Available(there, lacking, judged)


def record_request(folder: pathlib.Path, configs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The tasks that are finished with their configs of today; what each is begun with is written down.

    Of a finished task that is to be run again it is not, until `record_result`: a kill in between changes nothing.

    Args:
      folder: the workdir of all.
      configs: plain, by task.

    Raises:
      UserError: a task that was finished with other settings.
    """
    path = folder / REQUEST
    before = read_json_object(path, 'restore the file, or give another --workdir') if path.exists() else {}
    finished, again = set(), set()
    for task, config in configs.items():
        if not is_finished(folder / task):
            continue
        changed = changed_keys(before[task], config) if task in before else {}
        changed = {key: values for key, values in changed.items() if values[2] not in (MACHINE, VERB)}
        for key, (then, now, change) in changed.items():
            if change is not OUTPUT and not key.startswith('sweep.'):  # else it is run again, for what is not done yet
                fix = f'restore the former value, or move {folder / task} away to run it again'
                raise UserError(f'config.{key}', f'{now!r} for {task}', f'{then!r}, with which it was finished', fix)
        (again if changed else finished).add(task)
    _write_asked(path, before | {task: config for task, config in configs.items() if task not in again})
    return finished


def record_result(folder: pathlib.Path, task: str, config: Mapping[str, Any]) -> None:
    """Writes down what a task was finished with, its predictions among it."""
    path = folder / REQUEST
    _write_asked(path, {**read_json_object(path, 'restore the file, or give another --workdir'), task: config})


def _write_asked(path: pathlib.Path, configs: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(configs, indent=2, sort_keys=True, ensure_ascii=False) + '\n')
