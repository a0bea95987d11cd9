"""The task of a fine-tuned model, from what lies beside its weights: ours has a task.json, others a config.json."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.ranges import MANY, format_value, whole
from bertjax.errors import UserError
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task

# What transformers calls a class, without the name of its family -> the kind of task.
_KINDS = {
    'ForSequenceClassification': 'classification',
    'ForTokenClassification': 'tagging',
    'ForQuestionAnswering': 'squad',
    'ForMultipleChoice': 'multiple_choice',
}

_OUTPUTS = whole(1, MANY)  # of a head


def recorded_options(task: Mapping[str, Any], seq_len: int) -> Task:
    """The task of a task.json, whose options are `task`, with their `kind`; it has not learned its labels yet."""
    options = {name: tuple(x) if isinstance(x, list) else x for name, x in task.items() if name != 'kind'}
    return build_task(task['kind'], data='', seq_len=seq_len, **options)


def with_length(task: Task, seq_len: int) -> Task:
    """The same task, with all that it has learned, for sequences of another length.

    Raises:
      UserError: its options do not go with that length.
    """
    changes = {'seq_len': seq_len}
    if hasattr(task, 'max_query'):
        changes['max_query'] = min(task.max_query, seq_len - 4)
    dataclasses.replace(task, **changes)  # raises
    other = copy.copy(task)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def task_of_class(values: Mapping[str, Any], seq_len: int, where: str) -> Task | None:
    """The task that transformers' class is for; None for an encoder, or a model for pre-training.

    Args:
      values: of a config.json: `architectures`, `id2label`, `problem_type`.
      seq_len: S, the longest sequence.
      where: the directory, for messages.

    Raises:
      UserError: a config.json that does not say how many labels there are.
    """
    names = values.get('architectures') or ['']
    kind = next((kind for suffix, kind in _KINDS.items() if str(names[0]).endswith(suffix)), None)
    if kind == 'squad':
        # Without a threshold tuned on dev the best span is the answer.
        return build_task(kind, data='', seq_len=seq_len, max_query=min(64, seq_len - 4))
    if kind in (None, 'multiple_choice'):
        return kind and build_task(kind, data='', seq_len=seq_len)
    labels = _labels(values, where)
    if kind == 'tagging':
        scheme = 'auto' if all(label == 'O' or label[:2] in ('B-', 'I-') for label in labels) else 'plain'
        task = build_task(kind, data='', seq_len=seq_len, scheme=scheme)
        task.restore({'labels': labels, 'scheme': ''})
        return task
    problem = values.get('problem_type')
    if problem == 'multi_label_classification':
        return build_task('multi_label', data='', seq_len=seq_len, labels=labels)
    regression = problem == 'regression' or (problem is None and len(labels) == 1)
    task = build_task(kind, data='', seq_len=seq_len, regression=regression)
    task.restore({'labels': [] if regression else labels})
    return task


def _labels(values: Mapping[str, Any], where: str) -> Sequence[str]:
    """Names of the outputs, in order; transformers' own LABEL_0, LABEL_1 where nobody has named them."""
    names = values.get('id2label') or {}
    if not isinstance(names, Mapping):
        raise _wrong_names(where, names)
    count = values.get('num_labels') or len(names) or 2
    if not _OUTPUTS.holds(count):
        raise UserError(where, f'num_labels {format_value(count)}', _OUTPUTS.words, 'take the original file')
    try:
        found = {int(number): str(name) for number, name in names.items()}
    except ValueError:
        raise _wrong_names(where, names) from None
    if not all(0 <= number < count for number in found):
        raise _wrong_names(where, names)
    labels = [found.get(i, f'LABEL_{i}') for i in range(count)]
    if len(set(labels)) < len(labels):
        fix = 'give each output a name of its own'
        raise UserError(where, 'two outputs of one name in id2label', 'different names', fix)
    return labels


def _wrong_names(where: str, names: Any) -> UserError:
    fix = 'correct id2label there: the number of each output, from 0, and its name'
    return UserError(where, f'id2label {format_value(names)}', 'an object such as {"0": "no", "1": "yes"}', fix)
