"""The options of a kind of task: the fields of its class, each of which declares what depends on it."""

from typing import Any, Literal

from bertjax.config.ranges import Range, whole
from bertjax.config.schema import Change, Key, Trained, key, keys_of

# What an option decides, and so when it may still change:
# 'model': the parameters. Neither a run that resumes nor a finished one can take another value.
# 'training': what the model learns from. A run that resumes reports the change; a finished model keeps its value.
# 'reading': where records are, how they are read, how answers are chosen. A finished model can be asked with another.
_POLICIES = {
    'model': (Change.STATE, Trained.SAME),
    'training': (Change.TRAINING, Trained.SAME),
    'reading': (Change.RUN, Trained.COMMAND_LINE),
}
BILSTM_UNITS = whole(0, 65_536)  # of each direction, where a kind can have a BiLSTM; 0: none


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
      default: its value where a recipe does not have it.
      allowed: its range; may be left out for True or False, and for any text.
      about: one line of documentation; '' where the docstring of the class has one among its attributes.
      decides: see above.
      named: whether the first argument of the kind's recipe names it, as in configs/glue.py:rte.
    """
    change, trained = _POLICIES[decides]
    return key(default, allowed, about, change=change, trained=trained, named=named)


def options_of(task: type) -> dict[str, Key]:
    """The options of a task's class by name: all fields but `data` and `seq_len`, which have no default."""
    change, trained = _POLICIES['training']
    return keys_of(task, change=change, trained=trained)
