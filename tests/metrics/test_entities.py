"""Tests entity scores against those of seqeval, and conversions between tag schemes."""

import random
import warnings

import pytest

from bertjax.metrics.classification import scores_from_counts
from bertjax.metrics.entities import (
    EntitySpan,
    score_entities,
    spans,
    tag_accuracy,
    to_iob2,
    to_scheme,
    total_score,
)

TAGS = ['O', 'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC', 'B-a-b', 'I-a-b']


def random_tags(seed: int, sentences: int = 60) -> list[list[str]]:
    """Returns random tag sequences, in which invalid transitions occur too."""
    draw = random.Random(seed)
    return [[draw.choice(TAGS) for _ in range(draw.randrange(1, 12))] for _ in range(sentences)]


def with_errors(gold: list[list[str]], seed: int) -> list[list[str]]:
    """Returns the sequences with a random 30 % of the tags replaced by random tags."""
    draw = random.Random(seed)
    return [[draw.choice(TAGS) if draw.random() < 0.3 else tag for tag in tags] for tags in gold]


def test_spans_of_entities():
    tags = ['I-PER', 'I-PER', 'B-PER', 'O', 'B-LOC', 'I-PER', 'I-PER', 'B', 'I', 'I-X-Y']
    assert spans(tags) == [
        EntitySpan('PER', 0, 2), EntitySpan('PER', 2, 3), EntitySpan('LOC', 4, 5), EntitySpan('PER', 5, 7),
        EntitySpan('', 7, 9), EntitySpan('X-Y', 9, 10),
    ]  # fmt: skip
    assert spans([]) == []
    assert spans(['O']) == []


def test_tag_schemes_are_converted():
    iob1 = ['I-PER', 'I-PER', 'B-PER', 'I-LOC', 'O', 'I-LOC']
    iob2 = ['B-PER', 'I-PER', 'B-PER', 'B-LOC', 'O', 'B-LOC']
    assert to_iob2(iob1) == iob2 and to_scheme(iob2, 'iob1') == iob1
    for tags in random_tags(0):
        assert to_iob2(to_iob2(tags)) == to_iob2(tags)
        assert to_scheme(to_iob2(tags), 'iob1') == to_scheme(tags, 'iob1')
        assert spans(to_iob2(tags)) == spans(to_scheme(tags, 'iob1')) == spans(tags)


@pytest.mark.parametrize('seed', range(8))
def test_scores_equal_seqeval(seed: int):
    seqeval = pytest.importorskip('seqeval.metrics', reason='compares with its figures')
    from seqeval.scheme import IOB2

    gold = random_tags(seed)
    predicted = with_errors(gold, seed + 100)
    ours = score_entities(gold, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        theirs = seqeval.classification_report(gold, predicted, output_dict=True)
        repaired = [to_iob2(tags) for tags in gold], [to_iob2(tags) for tags in predicted]
        strict = seqeval.classification_report(*repaired, output_dict=True, mode='strict', scheme=IOB2)
    assert ours == score_entities(*repaired)
    for report in (theirs, strict):
        for name, score in {**ours, 'micro avg': total_score(ours)}.items():
            figures = report[name]
            assert score.precision == pytest.approx(figures['precision'], abs=1e-12), name
            assert score.recall == pytest.approx(figures['recall'], abs=1e-12), name
            assert score.f1 == pytest.approx(figures['f1-score'], abs=1e-12), name
            assert score.true == figures['support'], name
    assert 0 < total_score(ours).f1 < 1
    assert tag_accuracy(gold, predicted) == pytest.approx(seqeval.accuracy_score(gold, predicted), abs=1e-12)


def test_scores_without_entities():
    assert total_score(score_entities([['O']], [['O']])) == scores_from_counts(0, 0, 0)
    assert (
        scores_from_counts(0, 0, 0).f1
        == scores_from_counts(0, 0, 0).precision
        == scores_from_counts(0, 0, 0).recall
        == 0
    )
    assert score_entities([['B-X']], [['O']])['X'] == scores_from_counts(0, 1, 0)
