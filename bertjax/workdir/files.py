"""Readers of the JSON files of a run. A malformed file raises a UserError with its path."""

import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax.config.check import check_recorded
from bertjax.config.ranges import format_value
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.model.config import BertConfig
from bertjax.tasks.registry import options
from bertjax.tasks.task import Task
from bertjax.workdir.rows import FOLDER as ROWS

_RESTORE = 'restore the file from a copy, or train again in another --workdir'


def read_recorded_config(path: pathlib.Path, kind: str | None = None) -> dict[str, Any]:
    """Reads config.json of a run. If the workdir was moved, the path to the rows of a Python program is corrected.

    Args:
      kind: The kind of task that the run must have; '' for pre-training, None for any run.

    Raises:
      UserError: The file is missing, damaged or of another kind, a key is missing or unknown, or a value is out of
        range.
    """
    if not path.exists():
        raise UserError(str(path), 'nothing', 'the config of the run', _RESTORE)
    saved = read_json_object(path, _RESTORE)
    if kind or (kind is None and 'task' in saved):
        task_options(saved, path, kind)
    elif 'task' in saved:
        raise UserError(str(path), "the key 'task'", 'the config of a pre-training', 'give the recipe of a task')
    check_recorded(saved, str(path), _RESTORE)
    data = pathlib.Path(saved.get('data', ''))
    if data.parent.parent.name == ROWS and not data.exists():
        # The rows of a sweep's trial are in the workdir of the sweep.
        moved = [folder / ROWS / data.parent.name / data.name for folder in path.parents[:3]]
        saved['data'] = next((str(folder.resolve()) for folder in moved if folder.is_dir()), saved['data'])
    return saved


def task_options(facts: Mapping[str, Any], path: pathlib.Path, kind: str | None = None) -> dict[str, Any]:
    """Returns the kind and the options of the task in a task.json or config.json.

    Raises:
      UserError: The task is missing or invalid, has an unknown option, or is not of the kind `kind` (if given).
    """
    if 'task' not in facts:
        fix = _RESTORE if kind is None else 'give the recipe of this workdir'
        raise UserError(str(path), 'no key task', 'the task of a fine-tuning', fix)
    task = facts['task']
    if not isinstance(task, dict) or not isinstance(task.get('kind'), str):
        raise UserError(f'{path}: task', format_value(task), 'the task of a fine-tuning', _RESTORE)
    if kind is not None:
        check_kind(task, kind, path)
    unknown = sorted(task.keys() - options(task['kind']).keys() - {'kind'})
    if unknown:
        raise UserError(f'{path}: task', f'the key {unknown[0]}', f'the options of {task["kind"]}', _RESTORE)
    return task


def check_kind(task: Mapping[str, Any], kind: str, path: pathlib.Path) -> None:
    """Raises a UserError if a recorded task is not of the kind `kind`."""
    if task.get('kind') != kind:
        expected = f'{task.get("kind")!r}, as in {path}'
        raise UserError('config.task.kind', repr(kind), expected, 'give the recipe of this model')


def has_task_file(path: pathlib.Path, kind: str) -> bool:
    """Returns whether there is a task.json, except in a copy of another program's model for another kind of task.

    The kind in such a copy only follows from the head, and several kinds have the same head. As with the original, the
    head must then fit the task. Raises the error of `check_kind` for other models.
    """
    facts = read_json_or_none(path, lambda facts: {**facts['task'], 'from_head': facts.get('from_head', False)})
    if facts is None:  # `read_recorded_task` reports a damaged file
        return path.is_file()
    if facts.get('kind') != kind and facts['from_head']:
        return False
    check_kind(facts, kind, path)
    return True


def read_recorded_task(path: pathlib.Path, task: Task) -> dict[str, Any]:
    """Reads task.json, and restores 'learned' into `task`.

    The result has the keys 'task' (the options of the task), 'learned' (the result of `Task.learned_state`), 'encoder'
    (the config of the encoder) and 'seq_len'.

    Raises:
      UserError: The file is damaged, or an option of `task` does not fit the learned state.
    """
    facts = read_json_object(path, _RESTORE)
    for key, kind in {'task': dict, 'learned': dict, 'encoder': dict, 'seq_len': int}.items():
        if type(facts.get(key)) is not kind:
            found, expected = format_value(facts.get(key)), f'a value of the type {kind.__name__}'
            raise UserError(f'{path}: {key}', found, expected, _RESTORE)
    labels = facts['learned'].get('labels', [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f'{path}: learned.labels', format_value(labels), 'a list of texts', _RESTORE)
    threshold = facts['learned'].get('null_threshold', 0.0)
    if type(threshold) not in (int, float):
        raise UserError(f'{path}: learned.null_threshold', format_value(threshold), 'a number', _RESTORE)
    try:
        task.restore(facts['learned'])
        try:
            BertConfig(**facts['encoder'])
        except UserError as error:
            found = f'encoder.{error.where.rpartition(".")[2]} {error.found}'
            raise UserError(str(path), found, error.expected, _RESTORE) from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(str(path), f'an invalid state ({error})', 'the task of this run', _RESTORE) from None
    return facts


def read_recorded_results(path: pathlib.Path) -> dict[str, Any]:
    """Reads results.json, the metrics of each split. Raises a UserError if the file is damaged."""
    fix = 'remove the file; --config.run=evaluate writes it again'
    results = read_json_object(path, fix)
    results.setdefault('splits', {})
    for key in ('splits', 'alone'):  # only an ensemble has 'alone'
        by_split = results.get(key, {})
        if not isinstance(by_split, dict) or not all(isinstance(values, dict) for values in by_split.values()):
            raise UserError(f'{path}: {key}', format_value(by_split), 'an object with the metrics of each split', fix)
    members = results.get('ensemble', [])
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        raise UserError(f'{path}: ensemble', format_value(members), 'a list of workdirs', fix)
    return results


def distillation_facts(config: Mapping[str, Any], *, uses_temperature: bool = True) -> dict[str, Any]:
    """Returns the non-zero numbers and True flags of config.distill that have an effect, for the model card."""
    values = config.get('distill', {})
    unused = {'augment_probability', 'augment_candidates'} if not values.get('augment') else set()
    unused |= {'temperature'} if not (values.get('soft') and uses_temperature) else set()
    used = {key: value for key, value in values.items() if key not in unused}
    return {f'distillation, {key}': value for key, value in used.items() if isinstance(value, int | float) and value}
