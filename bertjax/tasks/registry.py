"""The kinds of task that config.task.kind can name."""

import importlib
from collections.abc import Mapping
from typing import Any

from bertjax.config import plain
from bertjax.errors import UserError
from bertjax.tasks.options import Decides, Option, options_of
from bertjax.tasks.task import Task

# kind -> 'module:class', imported on first use.
KINDS = {
    'glue': 'bertjax.tasks.sentence.glue:GlueTask',
    'classification': 'bertjax.tasks.sentence.classification:ClassificationTask',
    'multi_label': 'bertjax.tasks.sentence.multi_label:MultiLabelTask',
    'relation': 'bertjax.tasks.relation.task:RelationTask',
    'squad': 'bertjax.tasks.squad.task:SquadTask',
    'tagging': 'bertjax.tasks.tagging.task:TaggingTask',
    'multiple_choice': 'bertjax.tasks.choice.task:MultipleChoiceTask',
}


def build_task(kind: str, *, data: str, seq_len: int, **options: Any) -> Task:
    """Builds a task.

    Args:
      kind: One of KINDS.
      data: The folder of its files; '' for tensorflow-datasets.
      seq_len: The maximum sequence length, in tokens.
      **options: The options of the kind, which are the fields of its class.

    Raises:
      UserError: The kind is unknown, or the value of an option is invalid.
    """
    return _class(kind)(data=data, seq_len=seq_len, **options)


def options(kind: str) -> Mapping[str, Option]:
    """Returns the options of a kind, by name.

    Raises:
      UserError: The kind is unknown.
    """
    return options_of(_class(kind))


def options_with_kind(task: Task) -> dict[str, Any]:
    """Returns the kind of a task and its options as plain values, in the form of task.json."""
    name = f'{type(task).__module__}:{type(task).__name__}'
    kind = next(kind for kind, known in KINDS.items() if known == name)
    return {'kind': kind, **{option: plain(getattr(task, option)) for option in options(kind)}}


def keys(kind: str, decides: Decides) -> list[str]:
    """Returns the config keys, such as 'task.dev_file', of a kind's options that decide `decides` (see options.py).

    Raises:
      UserError: The kind is unknown.
    """
    return [f'task.{name}' for name, option in options(kind).items() if option.decides == decides]


def defaults(kind: str) -> dict[str, Any]:
    """Returns {config key: default} of the options of a kind, for a run from before an option existed.

    Raises:
      UserError: The kind is unknown.
    """
    return {f'task.{name}': plain(option.default) for name, option in options(kind).items()}


def _class(kind: str) -> type[Task]:
    if kind not in KINDS:
        raise UserError('config.task.kind', repr(kind), 'one of ' + ', '.join(KINDS), 'see docs/finetuning.md')
    module, _, name = KINDS[kind].partition(':')
    return getattr(importlib.import_module(module), name)
