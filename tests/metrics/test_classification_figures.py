"""Tests that metrics equal those of scikit-learn and SciPy on random, tied, constant and empty data."""

import warnings

import numpy as np
import pytest

from bertjax.metrics.classification import (
    accuracy,
    binary_f1,
    class_scores,
    confusion,
    macro_f1,
    matthews,
    mean_squared_error,
    pearson,
    ranks,
    spearman,
)

SEEDS = range(12)


def draw(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns true and predicted classes, int64 [N], of random shares; some classes may be missing in either."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 300))
    shares = random.dirichlet(np.full(classes, 0.5), size=2)
    true, predicted = (random.choice(classes, size, p=share) for share in shares)
    return true, np.where(random.random(size) < 0.5, true, predicted)


@pytest.mark.parametrize('classes', [2, 3, 13])
@pytest.mark.parametrize('seed', SEEDS)
def test_class_metrics_equal_scikit_learn(seed: int, classes: int):
    sklearn = pytest.importorskip('sklearn.metrics', reason='compares with its figures')
    true, predicted = draw(seed, classes)
    table = confusion(true, predicted, classes)
    np.testing.assert_array_equal(table, sklearn.confusion_matrix(true, predicted, labels=range(classes)))
    same = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)  # noqa: E731
    same(accuracy(table), sklearn.accuracy_score(true, predicted))
    same(macro_f1(table), sklearn.f1_score(true, predicted, average='macro', zero_division=0))
    same(matthews(table), sklearn.matthews_corrcoef(true, predicted))
    theirs = sklearn.precision_recall_fscore_support(true, predicted, labels=range(classes), zero_division=0)
    scores = class_scores(table)
    for ours, other in zip((scores.precision, scores.recall, scores.f1, scores.true), theirs, strict=True):
        same(ours, other)
    if classes == 2:
        same(binary_f1(table), sklearn.f1_score(true, predicted, zero_division=0))


@pytest.mark.parametrize(('true', 'predicted'), [([1] * 5, [1] * 5), ([0] * 5, [1] * 5), ([0, 1, 1], [1, 1, 1])])
def test_metrics_of_a_single_class_equal_scikit_learn(true: list[int], predicted: list[int]):
    sklearn = pytest.importorskip('sklearn.metrics', reason='compares with its figures')
    table = confusion(true, predicted, 2)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert matthews(table) == sklearn.matthews_corrcoef(true, predicted) == 0
        assert binary_f1(table) == pytest.approx(sklearn.f1_score(true, predicted, zero_division=0))


def test_matthews_correlation_of_many_records_does_not_overflow():
    """Products of four counts exceed 64-bit integers."""
    table = np.array([[3, 1], [1, 3]]) * 10**9
    assert matthews(table) == pytest.approx(0.5)


@pytest.mark.parametrize('seed', SEEDS)
def test_value_metrics_equal_scipy(seed: int):
    stats = pytest.importorskip('scipy.stats', reason='compares with its figures')
    random = np.random.default_rng(seed)
    size = int(random.integers(3, 300))
    x = random.normal(size=size)
    y = x + random.normal(size=size)
    if seed % 2:  # Rounding makes ties.
        x, y = np.round(x), np.round(y)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    np.testing.assert_array_equal(ranks(x), stats.rankdata(x))
    assert mean_squared_error(x, y) == pytest.approx(np.mean((x - y) ** 2))


def test_metrics_of_float32_predictions_are_computed_in_float64():
    stats = pytest.importorskip('scipy.stats', reason='compares with its figures')
    random = np.random.default_rng(0)
    y = random.normal(3, 1e-3, size=1000)
    x = (y + random.normal(0, 1e-3, size=1000)).astype(np.float32)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x.astype(np.float64), y).statistic, abs=1e-12)


def test_a_perfect_correlation_is_one():
    x = np.random.default_rng(1).normal(size=1000)
    assert pearson(x, 3 * x + 1) == pytest.approx(1) and spearman(x, np.exp(x)) == pytest.approx(1)
    assert pearson(x, -x) == pytest.approx(-1) and abs(pearson(x, x)) <= 1


@pytest.mark.parametrize('measure', [pearson, spearman])
def test_undefined_metrics_are_none(measure):
    assert measure([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert measure([1.0, 2.0], [0.1, 0.1]) is None
    assert measure([1.0], [1.0]) is None
    assert measure([1.0, np.nan, 3.0], [1.0, 2.0, 3.0]) is None
    assert mean_squared_error([np.inf], [1.0]) is None
