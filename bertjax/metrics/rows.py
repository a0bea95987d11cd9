"""From sums and weights to the values of a metrics row; the names are a contract (docs/pretraining.md)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

Sums = Mapping[str, tuple[float, float]]
PAIRS = ('nsp', 'sop')  # what an objective on pairs of sentences is called in a row
_OF_PRETRAINING = ('mlm_loss', *(f'{pair}_loss' for pair in PAIRS))


def add_sums(parts: Iterable[Sums]) -> dict[str, tuple[float, float]]:
    """Total sums and weights of several batches, in float64."""
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            old = total.get(name, (0.0, 0.0))
            total[name] = (old[0] + float(value), old[1] + float(weight))
    return total


def pretraining_values(sums: Sums, pair: str = 'nsp') -> dict[str, float | None]:
    """loss, mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy, perplexity; None where the weight is 0.

    `loss` is the objective, the mean MLM loss plus the mean loss on pairs; `perplexity` is exp(mlm_loss).

    Args:
      sums: of losses and accuracies, as `losses.pretraining_losses` calls them.
      pair: 'sop' for sentence order: its figures are sop_loss and sop_accuracy in place of NSP's.
    """
    values: dict[str, float | None] = {}
    names = {'mlm': 'mlm', 'nsp': pair}
    for name, called in names.items():
        for kind in ('loss', 'accuracy'):
            total, weight = sums.get(f'{name}_{kind}', (0.0, 0.0))
            values[f'{called}_{kind}'] = total / weight if weight else None
    known = [values[f'{name}_loss'] for name in names.values() if values[f'{name}_loss'] is not None]
    mlm = values['mlm_loss']
    values['loss'] = sum(known) if known else None
    values['perplexity'] = math.exp(min(mlm, 700.0)) if mlm is not None and not math.isnan(mlm) else None
    return values


def pair_of(mode: str) -> str:
    """What the figures of config.pairs.mode are called; 'nsp' where there are none."""
    return mode if mode in PAIRS else 'nsp'


def task_values(sums: Sums) -> dict[str, float | None]:
    """The mean of each loss and accuracy of a task; None where the weight is 0."""
    return {name: total / weight if weight else None for name, (total, weight) in sums.items()}


def distillation_values(sums: Sums, factors: Mapping[str, float]) -> dict[str, float | None]:
    """The mean of each loss and accuracy, and `loss`, what is minimised: each loss times its factor."""
    values = task_values(sums)
    counted = [factor * values[name] for name, factor in factors.items() if values.get(name) is not None]
    return {**values, 'loss': sum(counted) if counted else None}


def distillation_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a teacher teaches in a run with these rows, as they call its parts: 'soft_loss' and the like; of another run
    []."""
    names = dict.fromkeys(name for row in rows for name in row if name.endswith('_loss'))
    return [name for name in names if name not in _OF_PRETRAINING]


def finite_or_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: non-finite values become None (null)."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
