"""Tests the padded lengths of buckets, the rows of batches, and their order."""

import itertools

import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder
from bertjax.data.length_buckets import MAX_LENGTHS, BucketedExamples, best_length_count, choose_lengths

LENGTHS = np.random.default_rng(0).gamma(3.0, 12.0, 403).astype(int) + 3


def features_of(lengths):
    builder = FeatureBuilder()
    for i, length in enumerate(lengths):
        builder.add_sequence(np.full(length, i))
        builder.add_row(i, labels=np.int32(i))
    return builder.build()


def examples(seed=0, batch_size=16, lengths=LENGTHS, count=4):
    shapes = choose_lengths(lengths, count=count, max_length=1000)
    return BucketedExamples(features_of(lengths), batch_size=batch_size, shapes=shapes, seed=seed, pad_id=0)


def padded(lengths, shapes):
    return sum(min(shape for shape in shapes if shape >= length) for length in lengths)


@pytest.mark.parametrize('count', [1, 2, 3])
def test_the_chosen_lengths_minimize_padding(count):
    lengths = LENGTHS[:60]
    chosen = choose_lengths(lengths, count=count, max_length=1000, multiple=8)
    assert len(chosen) <= count and all(length % 8 == 0 for length in chosen) and max(chosen) >= max(lengths)
    candidates = range(8, -(-max(lengths) // 8) * 8 + 1, 8)
    best = min(
        padded(lengths, shapes)
        for size in range(1, count + 1)
        for shapes in itertools.combinations(candidates, size)
        if max(shapes) >= max(lengths)
    )
    assert padded(lengths, chosen) == best


def test_useless_lengths_are_not_chosen():
    assert choose_lengths(np.full(9, 13), count=4, max_length=512) == (16,)
    assert choose_lengths(np.array([5, 30]), count=4, max_length=512) == (8, 32)
    assert choose_lengths(np.array([5, 9, 30]), count=4, max_length=512) == (8, 12, 32)


def test_lengths_do_not_exceed_the_model_limit():
    assert choose_lengths(np.array([5, 9, 30]), count=4, max_length=30) == (8, 12, 30)


def epoch(data, number):
    first = number * data.cycle_length
    return [data.batch(first + i + np.arange(data.batch_size)) for i in range(0, data.cycle_length, data.batch_size)]


def test_the_number_of_lengths_minimizes_the_total_cost():
    lengths = np.array([8] * 50 + [16] * 30 + [64] * 20)

    def best_count(compile_cost):
        return best_length_count(lengths, lambda length: length, compile_cost=compile_cost, max_length=512)[0]

    # The rows have 6,400 positions if padded to 64, 2,560 if padded to 16 and 64, and 2,160 without padding.
    assert [best_count(cost) for cost in (0, 399, 401, 3839, 3841)] == [3, 3, 2, 2, 1]
    spread = np.arange(4, 512)
    assert best_length_count(spread, lambda length: length, compile_cost=0, max_length=512)[0] == MAX_LENGTHS


def test_an_epoch_visits_every_row_once_with_few_shapes():
    data = examples()
    assert data.batches == -(-len(LENGTHS) // 16)
    for number in (0, 3):
        batches = epoch(data, number)
        seen = np.concatenate([batch['labels'][batch['weights'] > 0] for batch in batches])
        assert sorted(seen) == list(range(len(LENGTHS)))
        assert {batch['input_ids'].shape[1] for batch in batches} == set(data.abstract_batches())
        empty = [int((batch['weights'] == 0).sum()) for batch in batches]
        assert sum(1 for e in empty if e) == 1 and sum(empty) == data.cycle_length - len(LENGTHS)


def test_more_lengths_mean_less_padding():
    lengths = np.tile(LENGTHS, 10)

    def share_of_padding(count):
        batches = epoch(examples(lengths=lengths, count=count), 0)
        size = sum(batch['attention_mask'].size for batch in batches)
        return 1 - sum(batch['attention_mask'].sum() for batch in batches) / size

    assert share_of_padding(6) < 0.2 < share_of_padding(3) < 0.35 < 0.6 < share_of_padding(1)


def test_epoch_and_seed_change_the_order_but_not_the_shapes():
    data, other = examples(seed=0), examples(seed=1)
    first, second, other_seed = epoch(data, 0), epoch(data, 1), epoch(other, 0)
    labels = [np.concatenate([batch['labels'] for batch in batches]) for batches in (first, second, other_seed)]
    assert (labels[0] != labels[1]).mean() > 0.9 and (labels[0] != labels[2]).mean() > 0.9
    shapes = [[batch['input_ids'].shape for batch in batches] for batches in (first, second, other_seed)]
    assert shapes[0] == shapes[2] != shapes[1]


def test_upcoming_lengths_are_in_order_of_use():
    data = examples()
    for first, count in ((0, 3), (5, 40), (data.batches - 2, 10**6)):
        batches = [data.batch((first + i) * 16 + np.arange(16)) for i in range(min(count, 2 * data.batches))]
        lengths = dict.fromkeys(batch['input_ids'].shape[1] for batch in batches)
        assert data.upcoming_lengths(first * 16, count) == list(lengths)
    assert set(data.upcoming_lengths(0, 10**6)) == set(data.abstract_batches())


def test_any_part_of_a_batch_can_be_made_separately():
    data = examples()
    whole = epoch(data, 5)[7]
    numbers = 5 * data.cycle_length + 7 * 16 + np.arange(16)
    again = examples()
    halves = [again.batch(numbers[1::2]), again.batch(numbers[::2])]
    for name, x in whole.items():
        np.testing.assert_array_equal(x[1::2], halves[0][name])
        np.testing.assert_array_equal(x[::2], halves[1][name])
    with pytest.raises(ValueError, match='different batches'):
        data.batch(np.arange(10, 20))


def test_positions_in_the_order_are_uniform():
    data = examples(batch_size=8, lengths=np.full(64, 9))
    positions = np.zeros(64)
    for number in range(200):
        order = np.concatenate([batch['labels'] for batch in epoch(data, number)])
        positions[order] += np.arange(64)
    assert np.abs(positions / 200 - 31.5).max() < 5 * np.sqrt((64**2 - 1) / 12 / 200)
