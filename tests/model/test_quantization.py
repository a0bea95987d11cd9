"""Vectors of lower precision."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.model.quantization import cosine_similarity, quantize, value_ranges

X = np.random.default_rng(0).standard_normal((200, 24)).astype(np.float32)
X[:, 3] = 0.25  # a dimension without a range


@pytest.mark.slow
@pytest.mark.parametrize(('precision', 'name'), [('int8', 'int8'), ('binary', 'ubinary')])
def test_they_are_those_of_sentence_transformers(precision: str, name: str):
    util = pytest.importorskip('sentence_transformers.util', reason='compares with sentence-transformers')
    for calibration in (None, 0.5 * X):  # the second leaves values outside the ranges
        ranges = value_ranges(X if calibration is None else calibration)
        expected = util.quantize_embeddings(X, name, calibration_embeddings=calibration)
        found = quantize(X, precision, ranges)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_int8_are_the_steps_of_each_dimension():
    ranges = value_ranges(np.concatenate([X, np.full((1, 24), np.nan, np.float32)]))
    np.testing.assert_array_equal(ranges, [X.min(0), X.max(0)])
    found, step = quantize(X, 'int8', ranges), (ranges[1] - ranges[0]) / 255
    np.testing.assert_allclose(ranges[0] + (found + 128.5) * step, X, atol=step.max() * 0.51)
    assert (found.min(0) == -128).all() and (np.delete(found, 3, axis=1).max(0) >= 126).all()
    assert not quantize(np.full((1, 24), np.nan, np.float32), 'int8', ranges).any()


def test_int8_are_compared_by_the_values_that_they_stand_for():
    ranges = value_ranges(X)
    coded, step = quantize(X, 'int8', ranges), (ranges[1] - ranges[0]) / 255
    values = ranges[0] + (coded + 128.5) * step
    values[7], coded[7] = 0, 0  # an absent text
    unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    found = cosine_similarity(jnp.asarray(coded), jnp.asarray(coded), jnp.asarray(ranges))
    np.testing.assert_allclose(found, unit @ unit.T, atol=1e-6)
    floats = X / np.linalg.norm(X, axis=1, keepdims=True)
    found = cosine_similarity(jnp.asarray(X), jnp.asarray(coded), jnp.asarray(ranges))
    np.testing.assert_allclose(found, floats @ unit.T, atol=1e-6)


def test_the_cosine_of_bits_is_the_hamming_distance():
    bits = quantize(X, 'binary')
    assert bits.shape == (200, 3) and bits.dtype == np.uint8
    distances = np.bitwise_count(bits[:, None] ^ bits).sum(-1)
    np.testing.assert_allclose(cosine_similarity(jnp.asarray(bits), jnp.asarray(bits)), 1 - distances / 12, atol=1e-6)
    with pytest.raises(UserError, match='for vectors of width 20, expected a multiple of 8; set truncate_dim=16'):
        quantize(X[:, :20], 'binary')
