"""Turns sums and weights into the values of a metrics row. docs/pretraining.md lists the values of pre-training."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

WeightedSums = Mapping[str, tuple[float, float]]  # {name: (weighted sum, sum of weights)}
PAIRS = ('nsp', 'sop')  # the names of the sentence-pair objectives in a row
_PRETRAINING_LOSSES = ('mlm_loss', *(f'{pair}_loss' for pair in PAIRS))


def add_sums(parts: Iterable[WeightedSums]) -> dict[str, tuple[float, float]]:
    """Adds the sums and weights of several batches, in float64."""
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            previous = total.get(name, (0.0, 0.0))
            total[name] = (previous[0] + float(value), previous[1] + float(weight))
    return total


def pretraining_values(sums: WeightedSums, pair: str = 'nsp') -> dict[str, float | None]:
    """Returns loss, mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy and perplexity. A value is None if its weight is 0.

    `loss` is the mean MLM loss plus the mean pair loss, without means of weight 0 and without the z-loss. `perplexity`
    is exp(min(mlm_loss, 700)), or None for NaN. `sums` are named as in `losses.pretraining_losses`. `pair` is the pair
    objective: 'nsp', or 'sop', which renames nsp_loss and nsp_accuracy.
    """
    means, names = task_values(sums), {'mlm': 'mlm', 'nsp': pair}
    kinds = ('loss', 'accuracy')
    values = {f'{row_name}_{kind}': means.get(f'{name}_{kind}') for name, row_name in names.items() for kind in kinds}
    mlm = values['mlm_loss']
    known = [loss for loss in (mlm, values[f'{pair}_loss']) if loss is not None]
    values['loss'] = sum(known) if known else None
    values['perplexity'] = math.exp(min(mlm, 700.0)) if mlm is not None and not math.isnan(mlm) else None
    return values


def pair_name(mode: str) -> str:
    """Returns the name of the pair objective for a value of config.pairs.mode; 'nsp' for a mode without pairs."""
    return mode if mode in PAIRS else 'nsp'


def task_values(sums: WeightedSums) -> dict[str, float | None]:
    """Returns the mean of each loss and accuracy of a task. A mean is None if its weight is 0."""
    return {name: total / weight if weight else None for name, (total, weight) in sums.items()}


def distillation_values(sums: WeightedSums, factors: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the mean of each loss and accuracy. `loss` is the sum of factor · mean over `factors`."""
    values = task_values(sums)
    weighted = [factor * values[name] for name, factor in factors.items() if values.get(name) is not None]
    return {**values, 'loss': sum(weighted) if weighted else None}


def distillation_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the distillation losses, such as 'soft_loss', in the rows of a run."""
    names = dict.fromkeys(name for row in rows for name in row if name.endswith('_loss'))
    return [name for name in names if name not in _PRETRAINING_LOSSES]


def finite_or_none(value: Any) -> Any:
    """Replaces non-finite numbers in a value, its lists and dicts by None, because JSON cannot represent them."""
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
