"""Tests plans that pack sequences into rows."""

import numpy as np
import pytest

from bertjax.data.packing_plan import MAX_SEQUENCES, Cost, choose_plan, plan_single_rows

SHAPES, SIZES = (8, 16, 32, 48, 64, 96, 128), (1, 8, 16)
COST = Cost.of(384, 6)


def lengths_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return {
        'short': rng.integers(4, 56, 900),
        'of all kinds': rng.integers(3, 129, 500),
        'very short': rng.integers(3, 7, 400),
        'alike': np.full(300, 65),
    }[kind]


def computed(plan) -> int:
    return sum(len(rows) // plan.count * length for rows, length in plan.batches())


@pytest.mark.parametrize('kind', ['short', 'of all kinds', 'very short', 'alike'])
def test_every_sequence_is_in_one_row_and_fits(kind):
    lengths = lengths_of(kind)
    single, best = plan_single_rows(lengths, SHAPES, 32), choose_plan(lengths, SHAPES, 32, lambda length: SIZES, COST)
    for plan in (single, best):
        seen = []
        for rows, length in plan.batches():
            assert len(rows) == plan.size * plan.count and length in SHAPES
            real = np.where(rows < 0, 0, lengths[rows]).reshape(-1, plan.count)
            assert real.sum(1).max() <= length
            seen += rows[rows >= 0].tolist()
        assert sorted(seen) == list(range(len(lengths)))
    assert len(list(single.batches())) == -(-len(lengths) // 32)
    assert best.cost(COST) <= single.cost(COST)


def test_short_sequences_share_rows_and_long_ones_do_not():
    short, alike = lengths_of('short'), lengths_of('alike')
    plan = choose_plan(short, SHAPES, 32, lambda length: SIZES, COST)
    assert plan.count == MAX_SEQUENCES and computed(plan) < 1.05 * short.sum()
    assert computed(plan_single_rows(short, SHAPES, 32)) > 1.2 * short.sum()
    assert len({length for _, length in plan.batches()}) == 1  # There are also fewer programs.
    assert choose_plan(alike, SHAPES, 32, lambda length: SIZES, COST).count == 1
    assert choose_plan(short[:1], SHAPES, 1, lambda length: SIZES, COST).count == 1


def test_batches_of_long_rows_have_few_rows():
    plan = choose_plan(lengths_of('short'), SHAPES, 8, lambda length: (512 // length,), COST)
    assert {len(rows) // plan.count * length for rows, length in plan.batches()} == {512}
