"""Tests that counter-based hashes are random and that `permute` is a permutation."""

import numpy as np
import pytest

from bertjax.data.hashing import Stream, hash_bits, permute, randint, uniform

N = 1 << 16


def test_the_numbers_never_change():
    # The data order of every run depends on these numbers.
    bits = hash_bits(1, Stream.NEXT, np.array([0, 1, 10**12]), np.array([0, 7, 3]))
    assert bits.tolist() == [2595982631167780738, 16969838401634346918, 11728030006266378594]
    assert permute(np.arange(10), 10, hash_bits(3, Stream.ORDER, 0)).tolist() == [6, 2, 7, 4, 3, 9, 1, 0, 8, 5]


@pytest.mark.parametrize('axis', ['n', 'position', 'seed', 'stream'])
def test_consecutive_values_of_each_argument_give_uniform_bytes(axis):
    count = np.arange(N)
    if axis == 'n':
        bits = hash_bits(5, 3, count)
    elif axis == 'position':
        bits = hash_bits(5, 3, 11, count)
    elif axis == 'seed':
        bits = np.array([hash_bits(seed, 3, 11) for seed in range(N // 16)])
    else:
        bits = np.array([hash_bits(5, stream, 11) for stream in range(N // 16)])
    for shift in range(0, 64, 8):
        counts = np.bincount((bits >> np.uint64(shift)).astype(np.uint8), minlength=256)
        chi_square = ((counts - len(bits) / 256) ** 2).sum() / (len(bits) / 256)
        # With 255 degrees of freedom: mean 255, standard deviation 22.6; 5 standard deviations on either side.
        assert 142 < chi_square < 368


@pytest.mark.parametrize(
    'other',
    [
        lambda n, p: uniform(1, 2, n + 1, p),
        lambda n, p: uniform(1, 2, n, p + 1),
        lambda n, p: uniform(1, 3, n, p),
        lambda n, p: uniform(2, 2, n, p),
        lambda n, p: uniform(1, 2, p, n),
    ],
    ids=['next n', 'next position', 'next stream', 'next seed', 'n and position swapped'],
)
def test_neighbors_are_not_correlated(other):
    n, position = np.divmod(np.arange(N), 128)
    n = n + 1000
    first, second = uniform(1, 2, n, position), other(n, position)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(N)
    # Pairs are uniform too: a chi-square test of 16 x 16 cells with 255 degrees of freedom.
    cells = np.bincount((first * 16).astype(int) * 16 + (second * 16).astype(int), minlength=256)
    assert ((cells - N / 256) ** 2).sum() / (N / 256) < 368


def test_one_changed_bit_changes_half_of_the_bits():
    n = np.arange(4096)
    for bit in range(0, 63, 7):
        changed = np.bitwise_count(hash_bits(0, 1, n) ^ hash_bits(0, 1, n ^ (1 << bit)))
        assert abs(changed.mean() - 32) < 5 * 4 / np.sqrt(4096)  # Binomial(64, 1/2) has a standard deviation of 4.


def test_broadcasting_equals_single_calls():
    n, position = np.array([[3], [-1], [2**40]]), np.array([0, 5])
    together = hash_bits(-7, 4, n, position)
    assert together.shape == (3, 2)
    assert together.dtype == np.uint64
    for i in range(3):
        for j in range(2):
            assert together[i, j] == hash_bits(-7, 4, int(n[i, 0]), int(position[j]))


def test_randint_is_uniform_and_below_its_bound():
    drawn = randint(7, 0, 1, np.arange(70_000))
    assert set(drawn.tolist()) == set(range(7))
    assert np.abs(np.bincount(drawn) - 10_000).max() < 5 * np.sqrt(10_000)
    bounds = np.arange(1, 1000)
    assert (randint(bounds, 0, 2, bounds) < bounds).all()
    assert randint(1, 0, 3, np.arange(100)).max() == 0


def test_permute_is_a_bijection_for_every_size():
    for size in range(1, 700):
        image = permute(np.arange(size), size, hash_bits(1, Stream.ORDER, size))
        assert np.array_equal(np.sort(image), np.arange(size))


@pytest.mark.parametrize('size', [65_536, 65_537, 999_983])
def test_permute_is_a_bijection_for_large_sizes(size):
    image = permute(np.arange(size), size, hash_bits(1, Stream.ORDER, 0))
    assert np.bincount(image, minlength=size).max() == 1
    # An image is correlated neither with its index nor with the image of the next index.
    assert abs(np.corrcoef(np.arange(size), image)[0, 1]) < 5 / np.sqrt(size)
    assert abs(np.corrcoef(image[1:], image[:-1])[0, 1]) < 5 / np.sqrt(size)


def test_permute_takes_a_size_and_key_for_each_index():
    size = np.array([1, 2, 50, 1000, 10**15])
    index = np.array([0, 1, 49, 3, 10**15 - 1])
    keys = hash_bits(0, Stream.ORDER, np.arange(5))
    together = permute(index, size, keys)
    assert together.tolist() == [permute(i, s, k).item() for i, s, k in zip(index, size, keys, strict=True)]
    assert (together < size).all()


def test_keys_give_unrelated_permutations():
    size = 10_000
    first, second = (permute(np.arange(size), size, hash_bits(0, Stream.ORDER, 0, k)) for k in range(2))
    # The number of indices with equal images is Poisson with mean 1.
    assert (first == second).sum() < 10
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(size)


def test_the_image_of_an_index_is_uniform_over_keys():
    counts = np.bincount(permute(np.full(60_000, 3), 60, hash_bits(0, Stream.ORDER, np.arange(60_000))), minlength=60)
    assert ((counts - 1000) ** 2).sum() / 1000 < 59 + 5 * np.sqrt(2 * 59)
