"""The weights of the labels in the loss, config.task.class_weights."""

import json
from collections.abc import Mapping, Sequence

from bertjax.config.ranges import format_value, number
from bertjax.errors import UserError

KEY = 'config.task.class_weights'
BALANCED = 'balanced'
_WEIGHTS = number(1e-9, 1e9)  # beyond it the sums of a batch in float32 lose all precision


def check_class_weights(text: str) -> None:
    """Checks the text as `class_weights` does, but before the labels are known.

    Raises:
      UserError: The text is neither 'balanced' nor a list of weights by label.
    """
    if text not in ('', BALANCED):
        _parse(text)


def class_weights(text: str, labels: Sequence[str], balanced: Sequence[float]) -> tuple[float, ...]:
    """Returns a weight for each label.

    Args:
      text: 'balanced', or 'LABEL=WEIGHT,LABEL=WEIGHT', or the same as a JSON object, for labels with commas.
      labels: The names of the C labels.
      balanced: The C weights for 'balanced'.

    Returns:
      C floats; 1 for a label that the text does not name.

    Raises:
      UserError: See `check_class_weights`; or the text names an unknown label.
    """
    if text == BALANCED:
        return tuple(balanced)
    weights = _parse(text)
    for label in weights:
        if label not in labels:
            raise UserError(KEY, f'a weight of {label!r}', 'one of ' + ', '.join(labels[:30]), 'correct the label')
    return tuple(weights.get(label, 1.0) for label in labels)


def balanced_class_weights(counts: Sequence[int]) -> list[float]:
    """Returns N / (C · n) for a class with n of N records, as scikit-learn's class_weight='balanced'; 1 if n is 0."""
    return [sum(counts) / (len(counts) * count) if count else 1.0 for count in counts]


def balanced_pos_weights(counts: Sequence[int], records: int) -> list[float]:
    """Returns (N - n) / n for a label of n of the N records, the `pos_weight` that the documentation of torch's
    BCEWithLogitsLoss suggests; 1 if n is 0 or N."""
    return [(records - count) / count if 0 < count < records else 1.0 for count in counts]


def _parse(text: str) -> Mapping[str, float]:
    try:
        if text.startswith('{'):
            weights = {str(label): float(weight) for label, weight in json.loads(text).items()}
        else:
            pairs = [item.rpartition('=') for item in text.split(',')]
            weights = {label.strip(): float(weight) for label, _, weight in pairs}
    except (ValueError, TypeError, OverflowError):
        weights = {}
    if not weights or not all(map(_WEIGHTS.holds, weights.values())):
        expected = f"'{BALANCED}', or by label {_WEIGHTS.words}"
        raise UserError(KEY, format_value(text), expected, f"for example --{KEY}='spam=2.5,ham=1'")
    return weights
