"""Batches that have each stratum of lengths once, and places that hold any of them."""

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


def made(features, seed=0, batch_size=16):
    length = int(LENGTHS.max())
    return StratifiedExamples(features, batch_size=batch_size, length=length, seed=seed, pad_id=0)


def epoch(examples, number):
    numbers = number * examples.cycle_length + np.arange(examples.cycle_length)
    return examples.records(numbers)


@pytest.mark.parametrize('batch_size', [1, 7, 24, 32])
def test_each_epoch_sees_every_row_once_and_no_two_are_alike(features, batch_size):
    examples = made(features, batch_size=batch_size)
    orders = [epoch(examples, number) for number in (0, 1)] + [epoch(made(features, 1, batch_size), 0)]
    for order in orders:
        assert len(order) == examples.batches * batch_size
        assert sorted(order[order >= 0]) == list(range(len(LENGTHS)))
    assert all((orders[0] != other).mean() > 0.9 for other in orders[1:])


def test_any_example_can_be_made_alone_by_any_part_of_the_hosts(features):
    examples, again = made(features), made(features)
    numbers = 5 * examples.cycle_length + 7 * 16 + np.arange(16)
    whole = examples.batch(numbers)
    np.testing.assert_array_equal(whole['labels'], np.maximum(again.records(numbers), 0))
    for part in (numbers[1::2], numbers[8:]):
        for name, x in again.batch(part).items():
            np.testing.assert_array_equal(x, whole[name][part - numbers[0]])


def test_a_row_is_in_any_batch_as_often_as_in_another(features):
    """Over many epochs the mean batch that a row is in is the middle."""
    examples, places = made(features), np.zeros(len(LENGTHS))
    for number in range(100):
        order = epoch(examples, number).reshape(-1, 16)
        for batch, rows in enumerate(order):
            places[rows[rows >= 0]] += batch / 100
    spread = np.sqrt((examples.batches**2 - 1) / 12 / 100)
    assert np.abs(places - (examples.batches - 1) / 2).max() < 5 * spread


@pytest.mark.parametrize('batch_size', [1, 2, 7, 24, 32])
def test_each_stratum_has_one_row_and_halves_are_alike(batch_size):
    strata = row_strata(batch_size)
    assert sorted(strata) == list(range(batch_size))
    if batch_size % 8 == 0:
        # Two devices; two parts of an accumulation; both.
        of_each = strata.reshape(2, batch_size // 4, 2)
        for axes in ((1, 2), (0, 1), 1):
            assert np.ptp(of_each.mean(axes)) <= 3


@pytest.mark.parametrize('shards, parts', [(1, 1), (2, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize('shared, most', [(True, 1), (False, 3), (False, 1)])
def test_every_batch_has_room(features, shards, parts, shared, most):
    examples, room = made(features), slot_capacities(LENGTHS, 16, shards, parts)
    # Attention is dear where rows are not to be shared.
    cost = lambda length: length if shared else length + length**3  # noqa: E731
    places = choose_layout(room, 1, cost=cost, group_cost=0, max_groups=most, max_length=512, shared=shared)
    assert len(places.row_groups) == 1 if shared else len(places.row_groups) <= most
    _, rooms_of = np.asarray(places.slots).T
    counts, lengths_of_groups = np.asarray(places.row_groups).T
    row = np.repeat(np.arange(counts.sum()), np.repeat(lengths_of_groups, counts))
    taken = np.zeros(len(row), int)
    for begin, own in places.slots:
        taken[begin : begin + own] += 1
        assert len(set(row[begin : begin + own])) == 1  # no sequence is in two rows
    assert taken.max() == 1
    if shared and shards * parts == 1:
        assert taken.mean() > 0.9 and len(np.unique(row)) < len(places.slots)
    for order in (epoch(examples, 0), epoch(examples, 3)):
        lengths = np.where(order < 0, 0, LENGTHS[order]).reshape(-1, shards, 16 // shards // parts, parts)
        assert (lengths <= rooms_of[:, None]).all()


def test_choices_have_a_place_each():
    places = choose_layout(
        np.array([5, 9]), 3, cost=lambda length: length, group_cost=0, max_groups=2, max_length=512, shared=True
    )
    assert len(places.slots) == 6 and {room for _, room in places.slots} <= {5, 8, 9, 12}
