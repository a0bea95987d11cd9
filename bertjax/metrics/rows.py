"""From sums and weights to the values of a metrics row; the names are a contract (docs/pretraining.md)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

Sums = Mapping[str, tuple[float, float]]
PRETRAINING_LOSSES = ('mlm', 'nsp')


def add_sums(parts: Iterable[Sums]) -> dict[str, tuple[float, float]]:
    """Total sums and weights of several batches, in float64."""
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            old = total.get(name, (0.0, 0.0))
            total[name] = (old[0] + float(value), old[1] + float(weight))
    return total


def pretraining_values(sums: Sums) -> dict[str, float | None]:
    """loss, mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy, perplexity; None where the weight is 0.

    `loss` is the objective, the mean MLM loss plus the mean NSP loss; `perplexity` is exp(mlm_loss).
    """
    values: dict[str, float | None] = {}
    for name in PRETRAINING_LOSSES:
        for kind in ('loss', 'accuracy'):
            total, weight = sums.get(f'{name}_{kind}', (0.0, 0.0))
            values[f'{name}_{kind}'] = total / weight if weight else None
    known = [values[f'{name}_loss'] for name in PRETRAINING_LOSSES if values[f'{name}_loss'] is not None]
    mlm = values['mlm_loss']
    values['loss'] = sum(known) if known else None
    values['perplexity'] = math.exp(min(mlm, 700.0)) if mlm is not None and not math.isnan(mlm) else None
    return values


def task_values(sums: Sums) -> dict[str, float | None]:
    """The mean of each loss and accuracy of a task; None where the weight is 0."""
    return {name: total / weight if weight else None for name, (total, weight) in sums.items()}


def finite_or_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: non-finite values become None (null)."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
