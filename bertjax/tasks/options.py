"""The options of a kind of task: the fields of its class, each declared with its default, range and effect."""

import dataclasses
from typing import Any, Literal

from bertjax.ranges import Range, ranged, ranges_of, whole

# The part of a run that an option affects; it limits when the option may still change:
# 'model': the parameters. Neither a resumed nor a finished run can change the value.
# 'training': the data or the loss of training. A resumed run reports a change; a finished model keeps its value.
# 'reading': where and how records are read and how answers are chosen. A finished model can be used with another value.
Decides = Literal['model', 'training', 'reading']

BILSTM_UNITS = whole(0, 65_536)  # units of each direction, for the kinds that can have a BiLSTM; 0 for none


@dataclasses.dataclass(frozen=True)
class Option:
    """One key of config.task.

    Attributes:
      name: the name of the field.
      default: the value if a recipe does not set it.
      allowed: the range of values.
      decides: the part of a run that it affects, see `Decides`.
      named: whether the first argument of the kind's recipe sets it, as in configs/glue.py:rte.
    """

    name: str
    default: Any
    allowed: Range
    decides: Decides = 'training'
    named: bool = False


def option(default: Any, allowed: Range | None = None, *, decides: Decides = 'training', named: bool = False) -> Any:
    """Declares an option as a field of a task's class.

    The range may be left out if any text, or True and False, are allowed. A field with a plain default decides
    'training'.
    """
    return ranged(default, allowed, decides=decides, named=named)


def options_of(task: type) -> dict[str, Option]:
    """Returns the options of a task's class by name: all fields except `data` and `seq_len`, which have no default."""
    fields = {field.name: field for field in dataclasses.fields(task)}
    return {
        name: Option(name, fields[name].default, allowed, **_declared(fields[name]))
        for name, allowed in ranges_of(task).items()
    }


def _declared(field: dataclasses.Field) -> dict[str, Any]:
    return {name: value for name, value in field.metadata.items() if name != 'range'}
