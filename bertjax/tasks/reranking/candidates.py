"""The documents of a first search, which a reranker ranks again."""

import dataclasses
from collections.abc import Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.embedding.files import Query
from bertjax.tasks.reading.texts import read_lines


def with_candidates(queries: Sequence[Query], path: epath.Path, count: int) -> list[Query]:
    """Returns the queries with the first `count` documents of a run file of trec_eval as candidates.

    Args:
      queries: The queries of one corpus.
      path: The file, with lines `query Q0 document rank score name` that are sorted by rank.
      count: The maximum number of candidates of a query.

    Raises:
      UserError: A line is malformed, a document is unknown, or a query has no line.
    """
    index = {name: i for i, name in enumerate(queries[0].corpus.ids)}
    found: dict[str, list[int]] = {}
    for number, line in read_lines(path):
        fields = line.split()
        if len(fields) != 6 or fields[2] not in index:
            expected = 'query, Q0, a document of the corpus, rank, score and a name'
            raise UserError(f'{path}:{number}', repr(line[:60]), expected, 'give the run of a search of this corpus')
        found.setdefault(fields[0], []).append(index[fields[2]])
    for query in queries:
        if query.id not in found:
            raise UserError(str(path), f'no document of the query {query.id}', 'a line', 'search all queries')
    return [dataclasses.replace(query, candidates=tuple(found[query.id][:count])) for query in queries]
