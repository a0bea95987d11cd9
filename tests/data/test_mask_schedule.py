"""Tests mask rates that are linear in the number of the row."""

import numpy as np
import pytest
from data_fakes import synthetic_split

from bertjax.data.masking import MaskOptions
from bertjax.data.mixture import MixedExamples
from bertjax.data.packing import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.data.scheduled_masks import ScheduledMasks

S, P, COUNT = 64, 26, 200
HIGH, LOW = 0.4, 0.15


def examples_of(vocabulary, kind, rate=HIGH):
    def single(seed):
        return PretrainingExamples(
            synthetic_split(documents=60, sentences=4, seed=seed),
            vocabulary,
            seq_len=S,
            max_predictions=P,
            pairs=PairOptions(mode='doc_sentences', plans=2),
            masking=MaskOptions(rate=rate),
            seed=0,
            phase=0,
            cache_dir=None,
        )

    if kind == 'mixture':
        return MixedExamples([single(0), single(1)], [0.7, 0.3], seed=0, phase=0)
    return PackedExamples(single(0)) if kind == 'packed' else single(0)


@pytest.mark.parametrize('kind', ['single', 'packed', 'mixture'])
@pytest.mark.parametrize(('first', 'last'), [(HIGH, LOW), (LOW, HIGH)])
def test_each_row_has_the_number_of_predictions_of_its_rate(vocabulary, kind, first, last):
    scheduled = ScheduledMasks(examples_of(vocabulary, kind), first, last, COUNT)
    n = np.arange(COUNT + 50)
    rates = first + (last - first) * np.minimum(n / (COUNT - 1), 1)
    rows = scheduled.batch(n)
    predictions = rows['masked_weights'].sum(1)
    maskable = rows['attention_mask'].sum(1) - 2
    if kind == 'packed':  # The budget of each example is rounded, and is at least 1.
        in_row = rows['sequence_ids'].max(1)
        maskable -= 2 * (in_row - 1)
        assert (np.abs(predictions - rates * maskable) <= in_row).all()
    else:
        np.testing.assert_array_equal(predictions, np.maximum(np.rint(maskable * rates), 1))
    assert predictions.max() <= P
    assert (predictions / maskable)[:40].mean() == pytest.approx(rates[:40].mean(), abs=0.02)
    assert (predictions / maskable)[-40:].mean() == pytest.approx(rates[-40:].mean(), abs=0.02)
    # The text does not depend on the rate.
    for name in ('attention_mask', 'segment_ids'):
        np.testing.assert_array_equal(rows[name], examples_of(vocabulary, kind).batch(n)[name])


@pytest.mark.parametrize('kind', ['single', 'packed', 'mixture'])
def test_a_row_depends_on_its_number_only(vocabulary, kind):
    scheduled = ScheduledMasks(examples_of(vocabulary, kind), HIGH, LOW, COUNT)
    together = scheduled.batch(np.arange(COUNT))
    for some in (np.arange(COUNT)[::-7], np.array([3, 3, 150]), np.array([COUNT - 1])):
        for name, x in scheduled.batch(some).items():
            np.testing.assert_array_equal(x, together[name][some])


@pytest.mark.parametrize('kind', ['single', 'packed', 'mixture'])
def test_equal_first_and_last_rates_are_a_constant_rate(vocabulary, kind):
    scheduled = ScheduledMasks(examples_of(vocabulary, kind), HIGH, HIGH, COUNT)
    constant = examples_of(vocabulary, kind).batch(np.arange(50))
    for name, x in scheduled.batch(np.arange(50)).items():
        np.testing.assert_array_equal(x, constant[name])
