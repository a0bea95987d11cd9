"""The options of a kind of task: the fields of its class, each of which declares what depends on it."""

import dataclasses
from typing import Any, Literal

from bertjax.ranges import Range, ranged, ranges_of, whole

# What an option decides, and so when it may still change:
# 'model': the parameters. Neither a run that resumes nor a finished one can take another value.
# 'training': what the model learns from. A run that resumes reports the change; a finished model keeps its value.
# 'reading': where records are, how they are read, how answers are chosen. A finished model can be asked with another.
Decides = Literal['model', 'training', 'reading']

BILSTM_UNITS = whole(0, 65_536)  # of each direction, where a kind can have a BiLSTM; 0: none


@dataclasses.dataclass(frozen=True)
class Option:
    """One key of config.task.

    Attributes:
      name: of the field.
      default: its value where a recipe does not have it.
      allowed: the values that it may have.
      decides: see above.
      named: whether the first argument of the kind's recipe names it, as in configs/glue.py:rte.
    """

    name: str
    default: Any
    allowed: Range
    decides: Decides = 'training'
    named: bool = False


def option(default: Any, allowed: Range | None = None, *, decides: Decides = 'training', named: bool = False) -> Any:
    """A field of a task's class. Its range may be left out where it is that of any text, or of True and False; a plain
    default decides 'training'."""
    return ranged(default, allowed, decides=decides, named=named)


def options_of(task: type) -> dict[str, Option]:
    """The options of a task's class by name: all fields but `data` and `seq_len`, which have no default."""
    fields = {field.name: field for field in dataclasses.fields(task)}
    return {
        name: Option(name, fields[name].default, allowed, **_declared(fields[name]))
        for name, allowed in ranges_of(task).items()
    }


def _declared(field: dataclasses.Field) -> dict[str, Any]:
    return {name: value for name, value in field.metadata.items() if name != 'range'}
