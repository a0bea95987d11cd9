"""Tests mixtures: the proportions, that each example of a component is used once, and that example n depends on n
alone."""

import numpy as np
import pytest

from bertjax.data.mixture import BLOCK, MixedExamples, block_counts


class Component:
    """A component in which example n is (number of the component, n)."""

    def __init__(self, which, cycle_length=1000):
        self.which, self.cycle_length = which, cycle_length
        self.report = {'which': which}

    def batch(self, indices, rates=None):
        which = np.full(len(indices), self.which, np.int32)
        return {'which': which, 'number': np.asarray(indices), 'row': np.repeat(indices[:, None], 3, axis=1)}


def mixture(weights=(0.7, 0.2, 0.1), seed=0, phase=0, **options):
    return MixedExamples([Component(i, **options) for i in range(len(weights))], weights, seed=seed, phase=phase)


@pytest.mark.parametrize(
    'weights', [(0.7, 0.2, 0.1), (7, 2, 1), (1, 1, 1), (1e-9, 1.0), (3,), (0.123, 0.456, 0.789, 1)]
)
def test_the_counts_of_a_block_follow_the_weights(weights):
    counts = block_counts(weights)
    assert counts.sum() == BLOCK
    shares = np.asarray(weights) / np.sum(weights) * BLOCK
    assert (np.abs(counts - shares) <= 1).all()
    assert (counts >= 1).all()


def test_rare_components_are_never_dropped():
    """A component whose count would round to 0 gets one example per block, at the expense of the largest component."""
    counts = block_counts([1.0, 1e-4, 1e-4, 1e-7, 1e-7])
    np.testing.assert_array_equal(counts, [BLOCK - 4, 1, 1, 1, 1])


def test_each_block_uses_the_next_examples_of_each_component():
    mixed = mixture()
    counts = block_counts((0.7, 0.2, 0.1))
    for block in (0, 1, 2, 1000):
        component, number = mixed.locate(np.arange(block * BLOCK, (block + 1) * BLOCK))
        for c, count in enumerate(counts):
            used = np.sort(number[component == c])
            np.testing.assert_array_equal(used, block * count + np.arange(count))


def test_the_first_batch_prepares_all_components():
    """Later batches are loaded while the watchdog waits for a step, so they must not make plans."""
    prepared = []

    class Recorded(Component):
        @property
        def cycle_length(self):
            prepared.append(self.which)
            return 100

        @cycle_length.setter
        def cycle_length(self, value):
            pass

    mixed = MixedExamples([Recorded(i) for i in range(3)], (0.7, 0.2, 0.1), seed=0, phase=0)
    mixed.batch(np.asarray([0]))
    assert prepared == [0, 1, 2]
    mixed.batch(np.arange(9))
    assert prepared == [0, 1, 2]


def test_the_mixture_is_even_within_a_block():
    component, _ = mixture().locate(np.arange(BLOCK))
    shares = np.array([(part == 0).mean() for part in component.reshape(16, 256)])
    # The share in 256 draws of probability 0.7 has a standard deviation of 0.029.
    assert np.abs(shares - 0.7).max() < 0.12
    assert shares.std() > 0.005


def test_example_n_is_a_function_of_n_alone():
    mixed = mixture()
    n = np.random.default_rng(0).integers(0, 10 * BLOCK, 300)
    rows = mixed.batch(n)
    for i in (0, 1, 77, 299):
        one = mixed.batch(n[i : i + 1])
        for name, x in rows.items():
            np.testing.assert_array_equal(x[i], one[name][0])
    component, number = mixed.locate(n)
    np.testing.assert_array_equal(rows['which'], component)
    np.testing.assert_array_equal(rows['number'], number)
    np.testing.assert_array_equal(rows['row'], np.repeat(number[:, None], 3, axis=1))
    again = mixture().batch(n)
    assert all((again[name] == x).all() for name, x in rows.items())


@pytest.mark.parametrize('other', [{'seed': 1}, {'phase': 1}])
def test_seed_and_phase_change_the_order(other):
    n = np.arange(BLOCK)
    a, b = mixture().locate(n)[0], mixture(**other).locate(n)[0]
    # Two independent orders agree with the probability 0.49 + 0.04 + 0.01.
    assert 0.48 < (a == b).mean() < 0.60


def test_blocks_differ_in_their_order():
    component, _ = mixture().locate(np.arange(2 * BLOCK))
    assert 0.48 < (component[:BLOCK] == component[BLOCK:]).mean() < 0.60


def test_a_cycle_has_every_example_of_every_component():
    mixed = mixture((0.5, 0.5), cycle_length=3 * BLOCK)
    assert mixed.cycle_length == 6 * BLOCK
    component, number = mixed.locate(np.arange(mixed.cycle_length))
    for c in (0, 1):
        assert len(np.unique(number[component == c])) == 3 * BLOCK


def test_the_report_contains_those_of_the_components():
    assert mixture().report == {'components': [{'which': 0}, {'which': 1}, {'which': 2}]}
