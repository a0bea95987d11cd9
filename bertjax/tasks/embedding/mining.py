"""Hard negatives: the texts of a corpus that are similar to an anchor and are not its positives."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.inference import MineNegativesKeys
from bertjax.tasks.embedding.files import Query
from bertjax.tasks.embedding.search import search

SCORES = 'scores'  # the name of the field with the cosines of a record
_QUERIES = 4096  # the maximum number of queries in a search; bounds the memory for the results


def collect_texts(queries: Sequence[Query], further: Sequence[str]) -> tuple[list[str], list[str], list[list[int]]]:
    """Returns the distinct queries, the distinct texts of their corpus and of `further`, and each query's positives.

    The positives are indices of these texts. Blank texts are left out with their pairs, because training refuses them.
    """
    corpus = queries[0].corpus.texts
    numbers: dict[str, int] = {}
    for text in filter(str.strip, [*corpus, *further]):
        numbers.setdefault(text, len(numbers))
    relevant: dict[str, dict[int, None]] = {}
    blank = 0
    for query in queries:
        positives = [numbers[corpus[i]] for i in query.relevant if corpus[i] in numbers and query.text.strip()]
        blank += len(query.relevant) - len(positives)
        if positives:
            relevant.setdefault(query.text, {}).update(dict.fromkeys(positives))
    if blank:
        print(f'{blank:,} pairs with a blank text are left out')
    return list(relevant), list(numbers), [list(positives) for positives in relevant.values()]


def mine_negatives(
    queries: Sequence[str],
    documents: Sequence[str],
    relevant: Sequence[Sequence[int]],
    vectors: np.ndarray,
    document_vectors: np.ndarray,
    options: MineNegativesKeys,
) -> Iterator[Mapping[str, Any]]:
    """Yields a record for each positive of each query.

    A record has the anchor, the positive and the list of negatives, under the names in `options`. Its field SCORES has
    the cosines of the anchor with the positive and with each negative.

    Args:
      queries, documents, relevant: The results of `collect_texts`: Q queries, N texts, and the positives.
      vectors, document_vectors: float32 [Q, D] and [N, D], the embeddings.
      options: The rules for choosing negatives, and the names of the fields.
    """
    for begin in range(0, len(queries), _QUERIES):
        part = slice(begin, begin + _QUERIES)
        # The search may also find the positives and the query. They are removed below.
        count = options.range_max + max(map(len, relevant[part])) + 1
        indices, scores = search(vectors[part], document_vectors, count, cosine=True)
        found = zip(indices.tolist(), scores.tolist(), strict=True)
        for query, positives, pair, x in zip(queries[part], relevant[part], found, vectors[part], strict=True):
            # If the search finds fewer than `count` documents, the remaining scores are -inf.
            known = {i: score for i, score in zip(*pair, strict=True) if score > -np.inf}
            others = [i for i in known if i not in positives and documents[i] != query]
            others = others[options.range_min : options.range_max]
            for positive in positives:
                score, y = known.get(positive), document_vectors[positive]
                if score is None:
                    score = float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-12))
                negatives = [i for i in others if known[i] <= _highest_score(score, options)][: options.num_negatives]
                yield {
                    options.anchor: query,
                    options.positive: documents[positive],
                    options.negative: [documents[i] for i in negatives],
                    SCORES: [score, *(known[i] for i in negatives)],
                }


def _highest_score(score: float, options: MineNegativesKeys) -> float:
    """Returns the highest allowed score of a negative. `score` is the score of the positive."""
    absolute = -np.inf if options.absolute_margin is None else options.absolute_margin
    relative = -np.inf if options.relative_margin is None else abs(score) * options.relative_margin
    return score - max(absolute, relative)
