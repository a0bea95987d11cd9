"""The registry of task kinds. A kind is a value of config.task.kind."""

import importlib
from collections.abc import Mapping
from typing import Any

from bertjax.config.plain import to_plain
from bertjax.config.schema import Key
from bertjax.errors import UserError
from bertjax.tasks.task import Task, options_of

# {kind: 'module:class'}. A module is imported when its kind is first used.
KINDS = {
    'glue': 'bertjax.tasks.sentence.glue:GlueTask',
    'classification': 'bertjax.tasks.sentence.classification:ClassificationTask',
    'multi_label': 'bertjax.tasks.sentence.multi_label:MultiLabelTask',
    'relation': 'bertjax.tasks.relation.task:RelationTask',
    'squad': 'bertjax.tasks.squad.task:SquadTask',
    'tagging': 'bertjax.tasks.tagging.task:TaggingTask',
    'embed': 'bertjax.tasks.embedding.task:EmbeddingTask',
    'rerank': 'bertjax.tasks.reranking.task:RerankTask',
    'late_interaction': 'bertjax.tasks.late_interaction.task:LateInteractionTask',
    'multiple_choice': 'bertjax.tasks.choice.task:MultipleChoiceTask',
}


def build_task(kind: str, *, data: str, seq_len: int, **options: Any) -> Task:
    """Builds a task.

    Args:
      kind: One of KINDS.
      data, seq_len: See `Task`; `data` may be '' if no data are read.
      **options: The options of the kind: the other fields of its class.

    Raises:
      UserError: The kind is unknown, or an argument has an invalid value.
    """
    return _class(kind)(data=data, seq_len=seq_len, **options)


def options(kind: str) -> Mapping[str, Key]:
    """Returns the options of a kind, by name."""
    return options_of(_class(kind))


def options_with_kind(task: Task) -> dict[str, Any]:
    """Returns the kind and the options of a task as plain values, for the key `task` in task.json."""
    name = f'{type(task).__module__}:{type(task).__name__}'
    kind = next(kind for kind, known in KINDS.items() if known == name)
    return {'kind': kind, **{option: to_plain(getattr(task, option)) for option in options(kind)}}


def _class(kind: str) -> type[Task]:
    if kind not in KINDS:
        raise UserError('config.task.kind', repr(kind), 'one of ' + ', '.join(KINDS), 'see docs/finetuning.md')
    module, _, name = KINDS[kind].partition(':')
    return getattr(importlib.import_module(module), name)
