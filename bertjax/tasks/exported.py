"""Builds the task of a fine-tuned model from its task.json, or from the config.json of a Hugging Face model."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.ranges import MANY, format_value, integer
from bertjax.convert.huggingface.cross_encoder import read_cross_encoder
from bertjax.convert.huggingface.multi_vector import read_multi_vector, settings_as_options
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task

# {suffix of a Hugging Face class name: kind of task}.
_KINDS = {
    'ForSequenceClassification': 'classification',
    'ForTokenClassification': 'tagging',
    'ForQuestionAnswering': 'squad',
    'ForMultipleChoice': 'multiple_choice',
}

_OUTPUTS = integer(1, MANY)  # the allowed numbers of outputs of a head
_ENTITY_TAG = re.compile(r'O|[BIESLUM]-.+')


def build_recorded_task(task: Mapping[str, Any], seq_len: int) -> Task:
    """Builds a task from its kind and options in task.json, without learned state such as labels."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in task.items()}
    return build_task(data='', seq_len=seq_len, **options)


def read_exported_task(source: str, kind: str) -> Task | None:
    """Reads the task of an exported model from task.json; None if the file is missing, damaged or of another kind."""

    def parse(facts: Any) -> Task | None:
        if facts['task']['kind'] != kind:
            return None
        try:
            task = build_recorded_task(facts['task'], facts['seq_len'])
            task.restore(facts['learned'])
        except UserError:
            return None
        return task

    return read_json_or_none(pathlib.Path(source) / 'task.json', parse)


def with_seq_len(task: Task, seq_len: int) -> Task:
    """Returns a copy of a task with another maximum sequence length and the same learned state.

    If the option `max_query` of SQuAD is too large for `seq_len`, the copy has a smaller `max_query`.

    Raises:
      UserError: The options of the task do not allow `seq_len`.
    """
    # Learned labels are restored below, because those of a model need not be a valid option.
    changes = {field.name: field.default for field in dataclasses.fields(task) if field.name in task.learned.values()}
    changes['seq_len'] = seq_len
    if hasattr(task, 'max_query'):
        changes['max_query'] = min(task.max_query, seq_len - 4)
    try:
        result = dataclasses.replace(task, **changes)
    except UserError as error:
        limit = f'{error.where}: found {error.found}, expected {error.expected}'
        expected = f'a length that the task allows ({limit})'
        raise UserError('max_length', str(seq_len), expected, 'choose a larger value') from None
    result.restore(task.learned_state())
    return result


def build_pair_task(directory: str, longest: int) -> Task | None:
    """Builds the task of a CrossEncoder or of a late interaction model (ColBERT); None for other models.

    `longest` is the model's number of positions.

    Raises:
      UserError: bertjax does not support a setting of the model.
    """
    reranker, multi_vector = read_cross_encoder(directory), read_multi_vector(directory, longest)
    if reranker:
        seq_len = min(reranker.max_length or longest, longest)
        return build_task('rerank', data='', seq_len=seq_len, activation=reranker.activation)
    if multi_vector:
        return build_task('late_interaction', data='', **settings_as_options(directory, multi_vector))
    return None


def build_task_for_class(values: Mapping[str, Any], seq_len: int, where: str) -> Task | None:
    """Builds the task of a model class of transformers; None for a class without a task, such as BertForPreTraining.

    `values` are the fields of a config.json. `architectures`, `id2label`, `num_labels` and `problem_type` are read.

    Raises:
      UserError: `id2label` is invalid, or does not fit `num_labels` or `problem_type`.
    """
    names = values.get('architectures') or ['']
    kind = next((kind for suffix, kind in _KINDS.items() if str(names[0]).endswith(suffix)), None)
    if kind == 'squad':
        # config.json has no null threshold, so the task is SQuAD 1.1, where the best span is always the answer.
        return build_task(kind, data='', seq_len=seq_len, max_query=min(64, seq_len - 4))
    if kind in (None, 'multiple_choice'):
        return kind and build_task(kind, data='', seq_len=seq_len)
    labels = _labels(values, where)
    if kind == 'tagging':
        scheme = 'auto' if all(map(_ENTITY_TAG.fullmatch, labels)) else 'plain'
        task = build_task(kind, data='', seq_len=seq_len, scheme=scheme)
        task.restore({'labels': labels, 'scheme': ''})
        return task
    problem = values.get('problem_type') or ('regression' if len(labels) == 1 else '')
    regression, several = problem == 'regression', problem == 'multi_label_classification'
    if (regression and len(labels) > 1) or (several and len(labels) < 2):
        found, fix = f'{len(labels)} outputs with problem_type {problem}', 'give another model'
        raise UserError(where, found, 'one output for a score, or at least two for labels', fix)
    kind, options = ('multi_label', {}) if several else (kind, {'regression': regression})
    task = build_task(kind, data='', seq_len=seq_len, **options)
    task.restore({**task.learned_state(), 'labels': [] if regression else labels})
    return task


def _labels(values: Mapping[str, Any], where: str) -> Sequence[str]:
    """Returns the names of the outputs, in order. The default name of output i is LABEL_i, as in transformers."""
    names = values.get('id2label') or {}
    try:
        named = {int(number): str(name) for number, name in names.items()}
    except (AttributeError, ValueError):  # not an object, or a key is not a number
        named = {-1: ''}
    count = values.get('num_labels') or len(named) or 2
    if not _OUTPUTS.contains(count):
        raise UserError(where, f'num_labels {format_value(count)}', _OUTPUTS.words, 'restore the original file')
    if not all(0 <= number < count for number in named):
        fix = 'correct id2label: the keys are the numbers of the outputs from 0, the values are their names'
        raise UserError(where, f'id2label {format_value(names)}', 'an object such as {"0": "no", "1": "yes"}', fix)
    labels = [named.get(i, f'LABEL_{i}') for i in range(count)]
    if len(set(labels)) < len(labels):
        fix = 'give each output a different name'
        raise UserError(where, 'two outputs with the same name in id2label', 'different names', fix)
    return labels
