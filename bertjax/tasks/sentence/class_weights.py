"""config.task.class_weights: how much each label counts in the loss."""

import json
from collections.abc import Mapping, Sequence

from bertjax.config.ranges import format_value, number
from bertjax.errors import UserError

KEY = 'config.task.class_weights'
BALANCED = 'balanced'
_WEIGHTS = number(1e-9, 1e9)  # of others the sums of a batch, in float32, would say nothing


def check_class_weights(text: str) -> None:
    """Refuses what `class_weights` would, as far as no label is known.

    Raises:
      UserError: neither 'balanced' nor weights by label.
    """
    if text not in ('', BALANCED):
        _parsed(text)


def class_weights(text: str, labels: Sequence[str], balanced: Sequence[float]) -> tuple[float, ...]:
    """A weight for each of the labels.

    Args:
      text: 'balanced', or 'LABEL=WEIGHT,LABEL=WEIGHT', or the same as a JSON object, for labels with commas.
      labels: C names.
      balanced: the weights that 'balanced' stands for.

    Returns:
      C floats; 1 for a label that is not named.

    Raises:
      UserError: see `check_class_weights`; a label that does not exist.
    """
    if text == BALANCED:
        return tuple(balanced)
    given = _parsed(text)
    for label in given:
        if label not in labels:
            raise UserError(KEY, f'a weight of {label!r}', 'one of ' + ', '.join(labels[:30]), 'correct the label')
    return tuple(given.get(label, 1.0) for label in labels)


def balanced_classes(counts: Sequence[int]) -> list[float]:
    """N / (C · n) for a class with n of the N records: scikit-learn's class_weight='balanced'; 1 for an empty class."""
    return [sum(counts) / (len(counts) * count) if count else 1.0 for count in counts]


def balanced_positives(counts: Sequence[int], records: int) -> list[float]:
    """(N - n) / n for a label that n of the N records have: the pos_weight that torch's BCEWithLogitsLoss suggests; 1
    for a label that all have, or none."""
    return [(records - count) / count if 0 < count < records else 1.0 for count in counts]


def _parsed(text: str) -> Mapping[str, float]:
    try:
        if text.startswith('{'):
            given = {str(label): float(weight) for label, weight in json.loads(text).items()}
        else:
            pairs = [item.rpartition('=') for item in text.split(',')]
            given = {label.strip(): float(weight) for label, _, weight in pairs}
    except (ValueError, TypeError, OverflowError):
        given = {}
    if not given or not all(map(_WEIGHTS.holds, given.values())):
        expected = f"'{BALANCED}', or by label {_WEIGHTS.words}"
        raise UserError(KEY, format_value(text), expected, f"for example --{KEY}='spam=2.5,ham=1'")
    return given
