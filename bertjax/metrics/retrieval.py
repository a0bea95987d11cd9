"""Metrics of rankings. nDCG and recall have the same values as in trec_eval, which BEIR uses."""

from collections.abc import Mapping, Sequence

import numpy as np

CUTOFFS = {'ndcg_10': 10, 'mrr_10': 10, 'recall_1': 1, 'recall_10': 10, 'recall_100': 100}  # {metric: its cutoff}


def retrieval_figures(rankings: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, int]]) -> dict[str, float]:
    """Returns nDCG@10, MRR@10 and the recall at 1, 10 and 100, averaged over one or more queries.

    In nDCG, the gain of a document is its relevance, and the discount is 1 / log2(1 + rank). All values of a query
    without relevant documents are 0, as in trec_eval.

    Args:
      rankings: The documents of each query, the best first: at least 100 of them, or all documents.
      relevant: {document: relevance above 0} of each query.
    """
    rows = [_query_figures(ranking, grades) for ranking, grades in zip(rankings, relevant, strict=True)]
    return {name: float(np.mean([row[name] for row in rows])) for name in CUTOFFS}


def _query_figures(ranking: Sequence[int], relevant: Mapping[int, int]) -> dict[str, float]:
    gains = np.array([relevant.get(document, 0) for document in ranking[: max(CUTOFFS.values())]], np.float64)
    hits = np.flatnonzero(gains > 0)
    ideal = _dcg(np.sort(np.array([*relevant.values()], np.float64))[::-1][:10])
    figures = {'ndcg_10': _dcg(gains[:10]) / ideal if ideal else 0.0}
    figures['mrr_10'] = 1.0 / (hits[0] + 1) if len(hits) and hits[0] < 10 else 0.0
    for cutoff in (1, 10, 100):
        figures[f'recall_{cutoff}'] = float((hits < cutoff).sum() / max(len(relevant), 1))
    return figures


def _dcg(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(len(gains)) + 2)).sum())
