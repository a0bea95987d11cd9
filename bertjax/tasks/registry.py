"""The kinds of task that config.task can name."""

import importlib
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.task import Task

# kind -> (module, class); imported when asked for.
KINDS = {
    'glue': ('bertjax.tasks.sentence.glue', 'GlueTask'),
    'classification': ('bertjax.tasks.sentence.classification', 'ClassificationTask'),
    'squad': ('bertjax.tasks.squad.task', 'SquadTask'),
    'tagging': ('bertjax.tasks.tagging.task', 'TaggingTask'),
    'multiple_choice': ('bertjax.tasks.choice.task', 'MultipleChoiceTask'),
}


def build_task(kind: str, *, data: str, seq_len: int, **options: Any) -> Task:
    """The task of this kind.

    Args:
      kind: one of KINDS.
      data: folder of its files; '' for tensorflow-datasets.
      seq_len: the longest sequence, in tokens.
      **options: of the kind; the fields of its class.

    Raises:
      UserError: an unknown kind, or an option with a value that the kind does not take.
    """
    if kind not in KINDS:
        raise UserError('config.task.kind', repr(kind), 'one of ' + ', '.join(KINDS), 'see docs/finetuning.md')
    return _class(kind)(data=data, seq_len=seq_len, **options)


def default_option(kind: str, option: str) -> Any:
    """What an option of a kind is where a recipe does not say it."""
    return getattr(_class(kind), option)


def _class(kind: str) -> type:
    module, name = KINDS[kind]
    return getattr(importlib.import_module(module), name)
