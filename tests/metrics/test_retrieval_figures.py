"""Tests that the metrics of rankings equal the definitions of trec_eval."""

import math
import random

import pytest

from bertjax.metrics.retrieval import CUTOFFS, retrieval_figures
from bertjax.tasks.embedding.base import make_ranking
from bertjax.tasks.embedding.files import Corpus, Query


def by_definition(ranking: list[int], relevant: dict[int, int]) -> dict[str, float]:
    """Returns the metrics of one ranking; `relevant` is {document: grade}."""
    gain = sum(relevant.get(d, 0) / math.log2(rank + 1) for rank, d in enumerate(ranking, 1) if rank <= 10)
    best = sum(
        g / math.log2(rank + 1) for rank, g in enumerate(sorted(relevant.values(), reverse=True), 1) if rank <= 10
    )
    recall = {k: len([d for d in ranking[:k] if d in relevant]) / (len(relevant) or 1) for k in (1, 10, 100)}
    first = next((rank for rank, d in enumerate(ranking, 1) if d in relevant), 11)
    return {
        'ndcg_10': gain / best if best else 0.0,
        'mrr_10': 1 / first if first <= 10 else 0.0,
        **{f'recall_{k}': share for k, share in recall.items()},
    }


def rankings():
    draw = random.Random(0)
    for documents in (3, 15, 300):
        for count in (0, 1, 2, 12):
            relevant = {d: draw.randint(1, 3) for d in draw.sample(range(documents), min(count, documents))}
            yield draw.sample(range(documents), min(documents, 120)), relevant


def test_metrics_equal_their_definitions():
    cases = list(rankings())
    rows = [by_definition(*case) for case in cases]
    figures = retrieval_figures(*zip(*cases, strict=True))
    assert figures.keys() == CUTOFFS.keys()
    for name, value in figures.items():
        assert value == pytest.approx(sum(row[name] for row in rows) / len(rows), abs=1e-12)


@pytest.mark.slow  # needs a package that the default suite lacks
def test_metrics_equal_pytrec_eval():
    pytrec_eval = pytest.importorskip('pytrec_eval', reason="needs pytrec-eval-terrier, of the extra 'test-all'")
    cases = list(rankings())
    corpus = Corpus([str(d) for d in range(300)], [''] * 300)
    draw, run = random.Random(1), {}
    for q, (documents, relevant) in enumerate(cases):
        scores = {d: float(draw.randint(0, 9)) for d in documents}  # many scores are equal
        cases[q] = make_ranking(Query(str(q), '', relevant, corpus), scores.items()).documents, relevant
        run[str(q)] = {str(d): score for d, score in scores.items()}
    truth = {str(q): {str(d): grade for d, grade in relevant.items()} for q, (_, relevant) in enumerate(cases)}
    theirs = pytrec_eval.RelevanceEvaluator(truth, {'ndcg_cut_10', 'recall_1', 'recall_10', 'recall_100'}).evaluate(run)
    figures = retrieval_figures(*zip(*cases, strict=True))
    for ours, name in {'ndcg_10': 'ndcg_cut_10', **{x: x for x in ('recall_1', 'recall_10', 'recall_100')}}.items():
        assert figures[ours] == pytest.approx(sum(row[name] for row in theirs.values()) / len(cases), abs=1e-9)
