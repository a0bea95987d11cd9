"""Task options: fields of a task class that are declared with a default, a range and the part of a run they affect."""

from typing import Any, Literal

from bertjax.config.ranges import Range, integer
from bertjax.config.schema import Change, Key, Trained, key, keys_of

# The part of a run that an option affects decides which changes of its value are allowed:
# 'model': the parameters. The value can change neither in a resumed run nor when the finished model is used.
# 'training': the training data or the loss. An unfinished run can be resumed with another value and reports the
#   change. The value cannot change when the finished model is used.
# 'reading': how records are read, or how answers are selected. The value can change when the finished model is used.
_POLICIES = {
    'model': (Change.STATE, Trained.SAME),
    'training': (Change.TRAINING, Trained.SAME),
    'reading': (Change.RUN, Trained.COMMAND_LINE),
}
BILSTM_UNITS = integer(0, 65_536)  # the allowed numbers of BiLSTM units per direction; 0 for no BiLSTM


def option(
    default: Any,
    allowed: Range | None = None,
    about: str = '',
    *,
    affects: Literal['model', 'training', 'reading'] = 'training',
    named: bool = False,
) -> Any:
    """Returns a dataclass field of a task class that is a key of config.task.

    A field with a default that is declared without `option` affects 'training'.

    Args:
      default: the value if a recipe does not set the option.
      allowed: the range of values; None allows True and False, or any text.
      about: one line of documentation; '' for the entry of the attribute in the docstring of the class.
      affects: a key of _POLICIES.
      named: whether the argument after the recipe's name sets the option, as in configs/glue.py:rte.
    """
    change, trained = _POLICIES[affects]
    return key(default, allowed, about, change=change, trained=trained, named=named)


def options_of(task: type) -> dict[str, Key]:
    """Returns the options of a task class by name: all fields except `data` and `seq_len`, which have no default."""
    change, trained = _POLICIES['training']
    return keys_of(task, change=change, trained=trained)
