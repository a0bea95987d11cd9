"""Advice for a fine-tuning run whose answers are nearly all the same, derived from the training rows of its metrics."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MIN_LOSS_CHANGE = 0.1  # a smaller relative change of the training loss is noise
MAX_WEIGHT_CHANGE = 0.2  # a larger relative change of the weights may lose the knowledge from pre-training
FEW_STEPS = 100  # most tasks need more steps
_END = 0.25  # the final loss is the mean loss of the last quarter of the rows


def advise(rows: Sequence[Mapping[str, Any]], learning_rate: float) -> str:
    """Explains from the rows of metrics.jsonl why a run gives nearly the same answer to every record."""
    rows = [row for row in rows if row['split'] == 'train']
    # The stages of a distillation have different losses, so only the rows of the last stage are compared.
    earlier = [row for row in rows if row.get('phase') != rows[-1].get('phase')]
    rows, start = rows[len(earlier) :], earlier[-1]['step'] if earlier else 0
    losses = [row['loss'] for row in rows if row.get('loss') is not None]  # rows of skipped steps may have no loss
    higher, lower = f'--config.learning_rate={5 * learning_rate:g}', f'--config.learning_rate={learning_rate / 5:g}'
    if not rows:
        return f'There is no training row that shows the reason: try a higher rate ({higher}) or a lower one ({lower})'
    if not losses or rows[-1]['skipped']:
        return (
            f'Some losses or updates were not finite: a lower rate ({lower}) or a larger config.warmup_fraction helps'
        )
    first, last = losses[0], statistics.fmean(losses[-math.ceil(_END * len(losses)) :])
    steps = rows[-1]['step'] - start
    figures = f'from {first:.3f} to {last:.3f} in {steps} steps'
    if len(losses) == 1:
        figures = f'{first:.3f} over all {steps} steps'
    if last > (1 + MIN_LOSS_CHANGE) * min(losses):
        return (
            f'The training loss ended at {last:.3f}, above its minimum of {min(losses):.3f}: a lower rate ({lower}) '
            'or a larger config.warmup_fraction helps'
        )
    if last < (1 - MIN_LOSS_CHANGE) * first:
        return (
            f'The training loss fell, {figures}, but the model may only have learned the frequencies of the labels: '
            f'train longer (config.epochs), with a higher rate ({higher}), or on more records'
        )
    # An upper bound of the relative change of the weights is about (mean update norm) · steps / (initial norm).
    change = statistics.fmean(row['update_norm'] for row in rows) * steps / max(rows[0]['param_norm'], 1e-12)
    if change < MAX_WEIGHT_CHANGE:
        more = 'more steps (config.epochs)'
        few = steps < FEW_STEPS
        helps = f'{more} and a higher rate ({higher}) help' if few else f'a higher rate ({higher}) helps, or {more}'
        return (
            f'The training loss hardly changed, {figures}, and the weights changed by at most about '
            f'{100 * change:.2g}%: {helps}'
        )
    return (
        f'The training loss hardly changed, {figures}, but the weights changed by up to {change:.0%}, so the '
        f'pre-training may be lost: a lower rate ({lower}) or another config.seed helps'
    )
