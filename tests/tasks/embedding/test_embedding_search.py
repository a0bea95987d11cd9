"""Tests the exact search in blocks."""

import numpy as np
import pytest

from bertjax.tasks.embedding import search as module
from bertjax.tasks.embedding.search import search


@pytest.mark.parametrize('count', [1, 7, 100])
def test_a_search_in_blocks_equals_a_stable_sort(monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(module, 'QUERIES', 4)
    monkeypatch.setattr(module, 'DOCUMENTS', 16)
    draw = np.random.default_rng(count).integers(-3, 4, (63, 8)).astype(np.float32)  # Many products are equal.
    queries, documents = draw[:10], draw[10:]
    indices, scores = search(queries, documents, count)
    products = queries @ documents.T
    expected = np.argsort(-products, axis=1, kind='stable')[:, :count]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, expected, 1))
