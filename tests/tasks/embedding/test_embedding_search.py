"""Tests the exact search in blocks, and the rankings of its results."""

import pathlib

import jax
import numpy as np
import pytest

from bertjax.model.quantization import PRECISIONS, quantize, value_ranges
from bertjax.tasks.embedding import search as module
from bertjax.tasks.embedding.base import make_rankings
from bertjax.tasks.embedding.files import Corpus, Query, TextExample, pairs_as_queries
from bertjax.tasks.embedding.search import search


@pytest.mark.parametrize('count', [1, 7, 100])
def test_a_search_in_blocks_equals_a_stable_sort(monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(module, 'QUERIES', 4)
    monkeypatch.setattr(module, 'DOCUMENTS', 16)
    draw = np.random.default_rng(count).integers(-3, 4, (63, 8)).astype(np.float32)  # Many products are equal.
    queries, documents = draw[:10], draw[10:]
    with jax.set_mesh(jax.make_mesh((8,), ('rows',))):  # a mesh of the caller
        indices, scores = search(queries, documents, count)
    products = queries @ documents.T
    expected = np.argsort(-products, axis=1, kind='stable')[:, :count]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, expected, 1))


@pytest.mark.parametrize('precision', PRECISIONS)
def test_cosines_of_any_precision_in_a_memory_map(
    precision: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, 'QUERIES', 4)
    monkeypatch.setattr(module, 'DOCUMENTS', 16)
    draw = np.random.default_rng(1).standard_normal((63, 32)).astype(np.float32)
    x = quantize(draw, precision, value_ranges(draw))
    np.save(tmp_path / 'documents.npy', x[10:])
    indices, scores = search(x[:10], np.load(tmp_path / 'documents.npy', mmap_mode='r'), 7, cosine=True)
    signs = np.where(draw > 0, 1.0, -1.0)  # 1 - 2 * Hamming distance / D is their cosine
    values = signs if precision == 'binary' else x.astype(np.float64)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    cosines = values[:10] @ values[10:].T
    expected = np.argsort(-cosines.round(6), axis=1, kind='stable')[:, :7]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, expected, 1), atol=1e-6)


@pytest.mark.parametrize('precision', PRECISIONS)
def test_absent_texts_are_found_last(precision):
    draw = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    draw[0] = np.nan
    x, ranges = quantize(draw, precision, value_ranges(draw)), value_ranges(draw)
    indices, scores = search(x[1:2], x, 4, cosine=True, ranges=ranges if precision == 'int8' else None)
    assert indices[0, 0] == 1 and scores[0, 0] == pytest.approx(1) and scores[0, -1] == -np.inf
    assert np.isfinite(scores[0, :-1]).all()


def test_an_anchor_does_not_find_its_own_text():
    pairs = [('a', 'b'), ('b', 'a'), ('c', 'c')]  # c is its own positive
    queries = pairs_as_queries([TextExample('pairs', pair) for pair in pairs])
    scores = np.array([[0.5, 1, 0], [1, 0.5, 0], [0, 0, 1]], np.float32)  # columns: b, a, c

    def search(count: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-scores, axis=1)[:, :count]
        return order, np.take_along_axis(scores, order, axis=1)

    assert [ranking.documents[0] for ranking in make_rankings(queries, search)] == [0, 1, 2]


def test_equal_scores_are_ordered_by_descending_id():
    """trec_eval compares ids as strings."""
    corpus, scores = Corpus(['x', 'd10', 'd9', 'D', 'd1'], list('abcde')), [[0.75] + [0.5] * 4]
    query = Query('q', 'f', {1: 1}, corpus)
    (ranking,) = make_rankings([query], lambda count: (np.arange(5)[None], np.float32(scores)))
    assert ranking.documents == [0, 2, 1, 4, 3] and ranking.scores == scores[0]


def test_a_relevant_document_with_the_id_of_its_query_is_found():
    corpus = Corpus(['1', '2'], ['a', 'b'])
    relevant, other = (Query('1', 'c', {index: 1}, corpus) for index in (0, 1))
    assert [[query.excludes(i) for i in (0, 1)] for query in (relevant, other)] == [[False, False], [True, False]]
