"""Tests that dropout is as random as that of a generator, and depends on (seed, site, example, position) alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.dropout import Dropout, Site, attention_words, drop, drop_weights, hash_words

RATE = 0.1
compiled_drop = jax.jit(drop, static_argnums=(1, 3))


def dropout_of(seed, numbers):
    return Dropout(np.uint32(seed), np.asarray(numbers, np.uint32))


def dropped_mask(shape, seed=0, first=0, site=Site.MLP_OUTPUT, rate=RATE):
    """Returns bool [*shape]: whether a value is dropped, for the example numbers from `first` on."""
    rows = dropout_of(seed, np.arange(shape[0]) + first)
    return np.asarray(compiled_drop(np.ones(shape, np.float32), rate, rows, site)) == 0


@functools.partial(jax.jit, static_argnums=1)
def drop_attention(weights, rate, dropout):
    return drop_weights(weights, rate, attention_words(dropout, weights.shape[1]))


def correlation(a, b):
    """Returns the correlation of two masks of rate RATE, in standard deviations of that of independent masks."""
    covariance = ((a - RATE) * (b - RATE)).mean()
    return covariance / (RATE * (1 - RATE)) * np.sqrt(np.broadcast(a, b).size)


@pytest.mark.parametrize('rate', [0.1, 0.5])
def test_a_share_of_the_values_is_dropped_and_the_others_are_rescaled(rate):
    x = np.asarray(compiled_drop(np.ones((64, 128, 64), np.float32), rate, dropout_of(3, np.arange(64)), Site.HEAD))
    np.testing.assert_allclose(np.unique(x), [0.0, 1 / (1 - rate)], rtol=1e-6)
    assert abs((x == 0).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / x.size)
    row_shares = (x == 0).mean((1, 2))  # The share is the same for all rows and positions.
    assert abs(row_shares - rate).max() < 5 * np.sqrt(rate * (1 - rate) / (128 * 64))
    ones = np.ones((4, 8, 64), jnp.bfloat16)
    halves = np.unique(compiled_drop(ones, rate, dropout_of(3, np.arange(4)), Site.HEAD))
    assert halves.astype(np.float32).tolist() == [0, float(jnp.bfloat16(1 / (1 - rate)))]
    position_shares = (x == 0).mean(0)
    assert position_shares.std() == pytest.approx(np.sqrt(rate * (1 - rate) / 64), rel=0.03)


def test_a_key_gives_the_same_mask_with_64_bit_types():
    def dropped():
        draw = lambda x: drop(x, 0.5, Dropout.from_key(jax.random.key(0), 4), Site.HEAD)  # noqa: E731
        return np.asarray(jax.jit(draw)(np.ones((4, 64), np.float32)))

    expected = dropped()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(dropped(), expected)
    assert 0.3 < (expected == 0).mean() < 0.7


def test_neighboring_values_are_independent():
    mask = dropped_mask((128, 64, 64))
    for axis in range(3):  # Example, position, dimension.
        for distance in (1, 2, 32):
            near = np.moveaxis(mask, axis, 0)
            assert abs(correlation(near[distance:], near[:-distance])) < 5, (axis, distance)
    for other in (
        dropped_mask((128, 64, 64), seed=1),
        dropped_mask((128, 64, 64), site=Site.ATTENTION_OUTPUT),
        dropped_mask((128, 64, 64), first=2**31),
    ):
        assert abs(correlation(mask, other)) < 5


@pytest.mark.slow
def test_no_row_is_a_shifted_copy_of_another():
    """If the words of a row were only added to the counters, the counters of neighboring rows would overlap."""
    rows = dropped_mask((512, 4, 64)).reshape(512, -1)
    spectrum = np.fft.rfft(rows - RATE, axis=1)
    for i in range(0, 512, 64):
        shifted = np.fft.irfft(spectrum[i] * spectrum.conj(), axis=1)  # [512, shifts]
        shifted[i] = 0
        assert abs(shifted).max() < 7 * RATE * (1 - RATE) * np.sqrt(rows.shape[1])


def test_each_bit_is_set_half_of_the_time():
    def hashed(dropout):
        words = dropout.words()
        return hash_words(words[:, :1], words[:, 1:], jnp.arange(4096, dtype=jnp.uint32))

    bits = np.asarray(jax.jit(hashed)(dropout_of(5, np.arange(256))))
    shares = [((bits >> i) & 1).mean() for i in range(8, 32)]
    assert max(abs(share - 0.5) for share in shares) < 5 * 0.5 / 1024


@pytest.mark.slow
def test_heads_and_queries_are_independent():
    weights = jnp.ones((8, 12, 64, 64))
    mask = np.asarray(drop_attention(weights, RATE, dropout_of(0, np.arange(8)))) == 0
    assert abs(mask.mean() - RATE) < 4 * np.sqrt(RATE * (1 - RATE) / mask.size)
    for axis in range(4):
        moved = np.moveaxis(mask, axis, 0)
        assert abs(correlation(moved[1:], moved[:-1])) < 5, axis


@pytest.mark.slow
def test_values_do_not_depend_on_the_size_of_the_batch():
    short, long = dropped_mask((4, 32, 16), first=7), dropped_mask((16, 48, 16), first=3)
    np.testing.assert_array_equal(short, long[4:8, :32])
    long = drop_attention(jnp.ones((16, 4, 48, 48)), RATE, dropout_of(1, np.arange(16) + 3))
    short = drop_attention(jnp.ones((4, 4, 32, 32)), RATE, dropout_of(1, np.arange(4) + 7))
    np.testing.assert_array_equal(short, long[4:8, :, :32, :32])


@pytest.mark.slow
def test_the_gradient_has_the_mask_of_the_value():
    dropout = dropout_of(2, np.arange(8))
    for options, shape in ((Site.HEAD,), (8, 16, 32)), ((), (8, 4, 16, 16)):
        function = drop if options else drop_attention
        x = jnp.full(shape, 3.0)
        y, pull = jax.vjp(lambda x, f=function, options=options: f(x, RATE, dropout, *options), x)
        np.testing.assert_array_equal(pull(jnp.ones_like(y))[0], y / 3.0)


def test_no_mask_is_saved_for_the_backward_pass():
    dropout = dropout_of(2, np.arange(8))
    _, pull = jax.vjp(lambda x: drop(x, RATE, dropout, Site.HEAD), jnp.ones((8, 64, 128)))
    assert sum(x.size for x in jax.tree.leaves(pull)) < 100


def test_sequences_of_one_row_are_independent():
    dropout = dropout_of(2, [5, 6]).repeat(3)
    assert dropout.example_ids.shape == (6,) and len(set(np.asarray(dropout.example_ids))) == 6
    np.testing.assert_array_equal(dropout.example_ids[:3], dropout_of(2, [5]).repeat(3).example_ids)
