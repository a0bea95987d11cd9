"""Advice for a run over a task that learned nothing, derived from its training rows."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MIN_LOSS_CHANGE = 0.1  # As a share of the first training loss; a smaller change is noise.
MAX_WEIGHT_CHANGE = 0.2  # As a share of the norm of the weights; a larger change destroys the pre-training.
FEW_STEPS = 100  # Hardly any task is learned in fewer steps.
_END = 0.25  # The mean loss of this last share of the rows is the final loss.


def advise(rows: Sequence[Mapping[str, Any]], learning_rate: float) -> str:
    """Explains a run that gives every record the same answer, and proposes other settings.

    Args:
      rows: The rows of metrics.jsonl, of which only the training rows are used.
      learning_rate: The peak learning rate.
    """
    rows = [row for row in rows if row['split'] == 'train']
    losses = [row['loss'] for row in rows if row.get('loss') is not None]  # Rows of skipped steps may have no loss.
    higher, lower = f'--config.learning_rate={5 * learning_rate:g}', f'--config.learning_rate={learning_rate / 5:g}'
    if not rows:
        return f'There is no training row to tell why: a higher rate may help ({higher}), or a lower one ({lower})'
    if not losses or rows[-1]['skipped']:
        return f'Steps were not finite: a lower rate helps ({lower}), or a longer config.warmup_fraction'
    first, last = losses[0], statistics.fmean(losses[-math.ceil(_END * len(losses)) :])
    figures = f'from {first:.3f} to {last:.3f} in {rows[-1]["step"]} steps'
    if len(losses) == 1:
        figures = f'{first:.3f} over all {rows[-1]["step"]} steps'
    if last > (1 + MIN_LOSS_CHANGE) * min(losses):
        return f'The training loss rose, {figures}: a lower rate helps ({lower}), or a longer config.warmup_fraction'
    if last < (1 - MIN_LOSS_CHANGE) * first:
        return (
            f'The training loss fell, {figures}, by what is of no use on dev, such as how frequent each label is: '
            f'train longer (config.epochs), with a higher rate ({higher}), or on more records'
        )
    change = _max_change(rows)
    if change < MAX_WEIGHT_CHANGE:
        more = 'more steps (config.epochs)'
        helps = f'{more} and a higher rate help' if rows[-1]['step'] < FEW_STEPS else f'a higher rate helps, or {more}'
        return f'The training loss hardly moved, {figures}, and the weights by {100 * change:.2g}%: {helps} ({higher})'
    return (
        f'The training loss hardly moved, {figures}, though the weights did, by {change:.0%}: that is too far from the '
        f'encoder it started from. A lower rate helps ({lower}), or another config.seed'
    )


def _max_change(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns an upper bound of the change of the weights as a share of their norm: mean update norm times steps."""
    updates = statistics.fmean(row['update_norm'] for row in rows)
    return updates * rows[-1]['step'] / max(rows[0]['param_norm'], 1e-12)
