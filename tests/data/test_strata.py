"""Tests batches with one row of each stratum of lengths, and the layouts of their slots."""

import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder
from bertjax.data.strata import StratifiedExamples, choose_layout, row_strata, slot_capacities

LENGTHS = np.random.default_rng(0).gamma(3.0, 12.0, 403).astype(int) + 3


@pytest.fixture(scope='module')
def features():
    builder = FeatureBuilder()
    for i, length in enumerate(LENGTHS):
        builder.add_sequence(np.full(length, i))
        builder.add_row(i, labels=np.int32(i))
    return builder.build()


def stratified(features, seed=0, batch_size=16):
    shapes = (int(LENGTHS.max()),)
    return StratifiedExamples(features, batch_size=batch_size, shapes=shapes, seed=seed, pad_id=0)


def epoch(examples, number):
    numbers = number * examples.cycle_length + np.arange(examples.cycle_length)
    batches = [examples.batch(rows) for rows in numbers.reshape(-1, examples.batch_size)]
    return np.concatenate([np.where(batch['weights'] > 0, batch['labels'], -1) for batch in batches])


@pytest.mark.parametrize('batch_size', [1, 7, 24, 32])
def test_each_epoch_has_every_row_once_in_another_order(features, batch_size):
    examples = stratified(features, batch_size=batch_size)
    orders = [epoch(examples, number) for number in (0, 1)] + [epoch(stratified(features, 1, batch_size), 0)]
    for order in orders:
        assert len(order) == examples.batches * batch_size
        assert sorted(order[order >= 0]) == list(range(len(LENGTHS)))
    assert all((orders[0] != other).mean() > 0.9 for other in orders[1:])


def test_any_part_of_a_batch_can_be_made_separately(features):
    examples, again = stratified(features), stratified(features)
    numbers = 5 * examples.cycle_length + 7 * 16 + np.arange(16)
    whole = examples.batch(numbers)
    for part in (numbers[1::2], numbers[8:]):
        for name, x in again.batch(part).items():
            np.testing.assert_array_equal(x, whole[name][part - numbers[0]])


def test_a_row_is_equally_often_in_every_batch(features):
    examples, means = stratified(features), np.zeros(len(LENGTHS))
    for number in range(100):
        order = epoch(examples, number).reshape(-1, 16)
        for batch, rows in enumerate(order):
            means[rows[rows >= 0]] += batch / 100
    deviation = np.sqrt((examples.batches**2 - 1) / 12 / 100)
    assert np.abs(means - (examples.batches - 1) / 2).max() < 5 * deviation


@pytest.mark.parametrize('batch_size', [1, 2, 7, 24, 32])
def test_each_stratum_has_one_row_and_halves_of_a_batch_are_similar(batch_size):
    strata = row_strata(batch_size)
    assert sorted(strata) == list(range(batch_size))
    if batch_size % 8 == 0:
        # [devices, rows, parts of an accumulation]
        grouped = strata.reshape(2, batch_size // 4, 2)
        for axes in ((1, 2), (0, 1), 1):
            assert np.ptp(grouped.mean(axes)) <= 3


@pytest.mark.parametrize('shards, parts', [(1, 1), (2, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize('shared, most', [(True, 1), (False, 3), (False, 1)])
def test_every_batch_fits_the_slots(features, shards, parts, shared, most):
    examples, capacities = stratified(features), slot_capacities(LENGTHS[:, None], 16, shards, parts)
    # The cubic cost makes long rows expensive, so that sequences do not share rows.
    cost = lambda length: length if shared else length + length**3  # noqa: E731
    layout = choose_layout(capacities, cost=cost, group_cost=0, max_groups=most, max_length=512, shared=shared)
    assert len(layout.row_groups) == 1 if shared else len(layout.row_groups) <= most
    _, slot_lengths = np.asarray(layout.slots).T
    counts, lengths_of_groups = np.asarray(layout.row_groups).T
    row = np.repeat(np.arange(counts.sum()), np.repeat(lengths_of_groups, counts))
    uses = np.zeros(len(row), int)
    for start, length in layout.slots:
        uses[start : start + length] += 1
        assert len(set(row[start : start + length])) == 1  # No slot is in two rows.
    assert uses.max() == 1
    if shared and shards * parts == 1:
        assert uses.mean() > 0.9 and len(np.unique(row)) < len(layout.slots)
    for order in (epoch(examples, 0), epoch(examples, 3)):
        lengths = np.where(order < 0, 0, LENGTHS[order]).reshape(-1, shards, 16 // shards // parts, parts)
        assert (lengths <= slot_lengths[:, None]).all()


def test_each_choice_has_a_slot():
    capacities = np.array([[5, 5, 5], [9, 5, 9]])
    layout = choose_layout(
        capacities, cost=lambda length: length, group_cost=0, max_groups=2, max_length=512, shared=True
    )
    assert (layout.capacities >= capacities.reshape(-1)).all() and {*layout.capacities.tolist()} <= {5, 8, 9, 12}


@pytest.mark.parametrize('shards, parts', [(1, 1), (2, 2)])
@pytest.mark.parametrize('longest', [500, 40])
def test_short_texts_of_pairs_have_short_slots(shards, parts, longest):
    """Most documents are truncated to `longest`, or none. The slots of the questions fit the questions."""
    rng = np.random.default_rng(1)
    lengths = np.stack([rng.integers(3, 20, 403), np.minimum(LENGTHS, longest)], axis=1)
    builder = FeatureBuilder(choices=2)
    for i, pair in enumerate(lengths):
        for length in pair:
            builder.add_sequence(np.full(length, i))
        builder.add_row(i, labels=np.int32(i))
    examples, capacities = stratified(builder.build()), slot_capacities(lengths, 16, shards, parts)
    assert capacities.shape == (16 // shards // parts, 2) and capacities[:, 0].max() <= 19
    for order in (epoch(examples, 0), epoch(examples, 3)):
        batches = np.where(order[:, None] < 0, 0, lengths[order]).reshape(-1, shards, len(capacities), parts, 2)
        assert (batches <= capacities[:, None]).all()
        assert shards * parts > 1 or longest > 40 or capacities.sum() < 1.2 * batches.sum((1, 2, 3, 4)).mean()
