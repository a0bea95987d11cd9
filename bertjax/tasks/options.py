"""The options of a kind of task: the fields of its class, each of which declares what depends on it."""

import dataclasses
from typing import Any, Literal

# What an option decides, and so when it may still change:
# 'model': the parameters. Neither a run that resumes nor a finished one can take another value.
# 'training': what the model learns from. A run that resumes reports the change; a finished model keeps its value.
# 'reading': where records are, how they are read, how answers are chosen. A finished model can be asked with another.
Decides = Literal['model', 'training', 'reading']


@dataclasses.dataclass(frozen=True)
class Option:
    """One key of config.task.

    Attributes:
      name: of the field.
      default: its value where a recipe does not have it.
      decides: see above.
      named: whether the first argument of the kind's recipe names it, as in configs/glue.py:rte.
    """

    name: str
    default: Any
    decides: Decides = 'training'
    named: bool = False


def option(default: Any, *, decides: Decides = 'training', named: bool = False) -> Any:
    """A field of a task's class that is more than its default; a plain default decides 'training'."""
    return dataclasses.field(default=default, metadata={'decides': decides, 'named': named})


def options_of(task: type) -> dict[str, Option]:
    """The options of a task's class by name: all fields but `data` and `seq_len`, which have no default."""
    fields = [field for field in dataclasses.fields(task) if field.default is not dataclasses.MISSING]
    return {field.name: Option(field.name, field.default, **field.metadata) for field in fields}
