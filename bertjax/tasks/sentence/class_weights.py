"""The weights of the labels in the loss, config.task.class_weights."""

import json
from collections.abc import Mapping, Sequence

from bertjax.config.ranges import format_value, number
from bertjax.errors import UserError

KEY = 'config.task.class_weights'
BALANCED = 'balanced'
_WEIGHTS = number(1e-9, 1e9)  # outside this range, the float32 sums of a batch lose all precision


def class_weights(text: str, labels: Sequence[str], balanced: Sequence[float]) -> tuple[float, ...]:
    """Returns a weight for each label.

    Args:
      text: 'balanced', or 'LABEL=WEIGHT,LABEL=WEIGHT', or a JSON object {"LABEL": WEIGHT} if labels contain commas.
      labels: The names of the C labels.
      balanced: The C weights for 'balanced'.

    Returns:
      C weights; 1 for a label that `text` does not contain.

    Raises:
      UserError: `text` has another format, or contains an unknown label or an invalid weight.
    """
    if text == BALANCED:
        return tuple(balanced)
    weights = parse_class_weights(text)
    for label in weights:
        if label not in labels:
            raise UserError(KEY, f'a weight of {label!r}', 'one of ' + ', '.join(labels[:30]), 'correct the label')
    return tuple(weights.get(label, 1.0) for label in labels)


def parse_class_weights(text: str) -> Mapping[str, float]:
    """Returns the weights that `text` lists, by label; {} for '' and 'balanced'. The labels are not checked.

    Raises:
      UserError: The text has another format than in `class_weights`, or contains an invalid weight.
    """
    if text in ('', BALANCED):
        return {}
    try:
        if text.startswith('{'):
            weights = {str(label): float(weight) for label, weight in json.loads(text).items()}
        else:
            pairs = [item.rpartition('=') for item in text.split(',')]
            weights = {label.strip(): float(weight) for label, _, weight in pairs}
    except (ValueError, TypeError, OverflowError):
        weights = {}
    if not weights or not all(map(_WEIGHTS.contains, weights.values())):
        expected = f"'{BALANCED}', or for each label {_WEIGHTS.words}"
        raise UserError(KEY, format_value(text), expected, f"for example --{KEY}='spam=2.5,ham=1'")
    return weights
