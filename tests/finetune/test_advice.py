"""Tests the advice for a fine-tuning with the same answer to every record."""

import pytest

from bertjax.finetune.advice import advise


def rows(losses: list[float | None], update_norm: float = 1e-3, skipped: int = 0) -> list[dict]:
    """Returns a training row for every ten steps of a model whose weights have the norm 40."""
    return [
        {'step': 10 * (i + 1), 'split': 'train', 'loss': loss, 'param_norm': 40.0, 'update_norm': update_norm,
         'skipped': skipped}
        for i, loss in enumerate(losses)
    ]  # fmt: skip


HIGHER, LOWER = '--config.learning_rate=0.0001)', '--config.learning_rate=4e-06)'


@pytest.mark.parametrize(
    ('trained', 'reason', 'rate'),
    [
        (rows([0.70, 0.69] * 5),
         'from 0.700 to 0.693 in 100 steps, and the weights changed by at most about 0.25%: a higher rate', HIGHER),
        (rows([0.70]), '0.700 over all 10 steps, and the weights changed by at most about 0.025%: more', HIGHER),
        (rows([0.70, 0.69, 0.70, 0.69], update_norm=2.0), 'but the weights changed by up to 200%', LOWER),
        (rows([0.70, 0.50, 0.35, 0.33]), 'fell, from 0.700 to 0.330', HIGHER),
        (rows([0.70, 0.69, 2.50, 3.50]), 'ended at 3.500, above its minimum of 0.690:', LOWER),
        (rows([0.70, 0.40, 0.70, 0.71]), 'ended at 0.710, above its minimum of 0.400:', LOWER),
        (rows([0.70, 0.69], skipped=2), 'not finite', LOWER),
        (rows([None, None], skipped=20), 'not finite', LOWER),
        ([row | {'phase': row['step'] > 20} for row in rows([2.02, 2.0, 0.70, 0.69])],  # two stages of a distillation
         'hardly changed, from 0.700 to 0.690 in 20 steps', HIGHER),
    ],
)  # fmt: skip
def test_the_advised_rate_follows_from_loss_and_weights(trained: list[dict], reason: str, rate: str):
    text = advise(trained, 2e-5)
    assert reason in text and rate in text and text[0].isupper()
    assert (HIGHER in text) != (LOWER in text)


def test_without_rows_both_rates_are_advised():
    text = advise([], 2e-5)
    assert 'no training row' in text and HIGHER in text and LOWER in text
