"""The options of a kind of task: the fields of its class, each declared with its default, range and effect."""

from typing import Any, Literal

from bertjax.config.ranges import Range, integer
from bertjax.config.schema import Change, Key, Trained, key, keys_of

# The part of a run that an option affects; it limits when the option may still change:
# 'model': the parameters. Neither a resumed nor a finished run can change the value.
# 'training': the data or the loss of training. A resumed run reports a change; a finished model keeps its value.
# 'reading': where and how records are read and how answers are chosen. A finished model can be used with another value.
_POLICIES = {
    'model': (Change.STATE, Trained.SAME),
    'training': (Change.TRAINING, Trained.SAME),
    'reading': (Change.RUN, Trained.COMMAND_LINE),
}
BILSTM_UNITS = integer(0, 65_536)  # units of each direction, for the kinds that can have a BiLSTM; 0 for none


def option(
    default: Any,
    allowed: Range | None = None,
    about: str = '',
    *,
    decides: Literal['model', 'training', 'reading'] = 'training',
    named: bool = False,
) -> Any:
    """A field of a task's class that is a key of config.task; a plain field with a default decides 'training'.

    Args:
      default: the value if a recipe does not set it.
      allowed: the range of values; it may be left out for True and False, and for any text.
      about: one line of documentation; '' takes the entry of the attribute from the docstring of the class.
      decides: the part of a run that the option affects, see above.
      named: whether the first argument of the kind's recipe sets it, as in configs/glue.py:rte.
    """
    change, trained = _POLICIES[decides]
    return key(default, allowed, about, change=change, trained=trained, named=named)


def options_of(task: type) -> dict[str, Key]:
    """Returns the options of a task's class by name: all fields except `data` and `seq_len`, which have no default."""
    change, trained = _POLICIES['training']
    return keys_of(task, change=change, trained=trained)
