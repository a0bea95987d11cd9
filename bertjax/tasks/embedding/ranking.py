"""Rankings of the documents of a corpus for queries."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.metrics.retrieval import CUTOFFS
from bertjax.tasks.embedding.files import Query

_SHOWN = 10  # the documents of a query in a row of the predictions


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The most similar documents of a query, the best first: their indices in the corpus, and the cosines."""

    documents: Sequence[int]
    scores: Sequence[float]


def make_rankings(queries: Sequence[Query], search: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> list[Ranking]:
    """Makes rankings of a search, without the document that has the id of the query, as BEIR does.

    Args:
      queries: The Q queries of one corpus.
      search: A function: a number K of documents -> their indices and scores [Q, K], the best first.
    """
    count, rankings = max(CUTOFFS.values()), []
    for query, *found in zip(queries, *search(count + 1), strict=True):
        pairs = zip(*(x.tolist() for x in found), strict=True)
        others = [(i, score) for i, score in pairs if query.corpus.ids[i] != query.id][:count]
        rankings.append(Ranking([i for i, _ in others], [score for _, score in others]))
    return rankings


def ranking_row(query: Query, ranking: Ranking) -> dict[str, Any]:
    """Returns a query and its first documents as a JSON object."""
    found = list(zip(ranking.documents, ranking.scores, strict=True))[:_SHOWN]
    documents = [
        {'id': query.corpus.ids[i], 'score': score, 'relevance': query.relevant.get(i, 0)} for i, score in found
    ]
    return {'query': query.id, 'text': query.text, 'documents': documents}


def trec_lines(query: Query, ranking: Ranking) -> Iterator[str]:
    """Yields the lines of a query in the run file of trec_eval."""
    for rank, (i, score) in enumerate(zip(ranking.documents, ranking.scores, strict=True), 1):
        yield f'{query.id} Q0 {query.corpus.ids[i]} {rank} {score!r} bertjax\n'
