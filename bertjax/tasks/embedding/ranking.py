"""Rankings of the documents of a corpus for queries."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.metrics.retrieval import CUTOFFS
from bertjax.tasks.embedding.files import Query


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The most similar documents of a query, the best first: their indices in the corpus, and the cosines."""

    documents: Sequence[int]
    scores: Sequence[float]


def make_rankings(queries: Sequence[Query], search: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> list[Ranking]:
    """Ranks the documents of a search for each query. As in BEIR, a document with the id of the query is left out.

    Args:
      queries: The Q queries of one corpus.
      search: The function K -> indices and scores [Q, K] of the best K documents of each query, the best first.
    """
    count, rankings = max(CUTOFFS.values()), []
    for query, *found in zip(queries, *search(count + 1), strict=True):
        pairs = zip(*(x.tolist() for x in found), strict=True)
        others = [(i, score) for i, score in pairs if query.corpus.ids[i] != query.id][:count]
        rankings.append(Ranking([i for i, _ in others], [score for _, score in others]))
    return rankings
