"""The methods of `api.Bert` that compare texts by their vectors: similarity, search and reranking."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, overload

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.ranges import COUNT, integer
from bertjax.errors import UserError
from bertjax.inference.arguments import Texts, as_text_list, check_value
from bertjax.inference.encode import DOCUMENT, QUERY, find_prompt, resolve_encoding
from bertjax.inference.encode_methods import EncodeMethods
from bertjax.inference.task_methods import score_pairs
from bertjax.inference.vector_files import VectorShards, calibrated_ranges
from bertjax.model.quantization import PRECISIONS, cosine_similarity, dequantize
from bertjax.tasks.embedding.search import search

Vectors = np.ndarray | jax.Array | VectorShards
Entries = Sequence[str] | Vectors  # texts, or their vectors


class SearchHit(TypedDict):
    """A text that was found: its index, its score, and the text itself unless the corpus consists of vectors."""

    index: int
    score: float
    text: NotRequired[str]


class SearchMethods(EncodeMethods):
    """Methods that compare texts by the cosine of their vectors, or by a model that scores pairs.

    In place of texts, `similarity` and `search` also take vectors that `encode` returned. The dtype of the vectors
    determines their precision. The cosine of binary vectors is 1 - 2 · (Hamming distance) / D. int8 vectors are
    dequantized if `load_vectors` or `calibration` gives their ranges; otherwise, they are compared as integers, and
    only with each other.
    """

    def similarity(
        self, a: Texts | Vectors, b: Texts | Vectors, *, calibration: np.ndarray | None = None
    ) -> np.ndarray:
        """Computes the cosines of texts or vectors.

        Texts get the model's default prompt, if it has one, but not its prompts for queries or documents.

        Args:
          a: One text or several, or vectors: [D] or [N, D].
          b: One text or several, or vectors: [D] or [M, D].
          calibration: The `calibration` with which `encode` made the int8 vectors.

        Returns:
          float32 [N, M], without N if `a` is a single text or vector, and without M if `b` is a single text or vector.

        Raises:
          UserError: The widths or encodings differ, the precisions cannot be compared, or `calibration` does not fit.
        """
        self._check_sides(a=a, b=b)
        x, y = (side if _is_vectors(side) else None for side in (a, b))
        ranges = _find_ranges(calibration, x, y)
        x, y = (None if side is None else _decode(side, ranges) for side in (x, y))
        x = self._vectors(a, y, ()) if x is None else x
        y = self._vectors(b, x, ()) if y is None else y
        _check_match('b', y, x)
        cosines = cosine_similarity(*(jnp.atleast_2d(jnp.asarray(side)) for side in (x, y)))
        return np.asarray(cosines).reshape((*x.shape[:-1], *y.shape[:-1]))[()]

    @overload
    def search(
        self, queries: str, corpus: Entries, top_k: int = ..., *, calibration: np.ndarray | None = ...
    ) -> list[SearchHit]: ...

    @overload
    def search(
        self, queries: Entries, corpus: Entries, top_k: int = ..., *, calibration: np.ndarray | None = ...
    ) -> list[list[SearchHit]]: ...

    def search(
        self, queries: Texts | Vectors, corpus: Entries, top_k: int = 10, *, calibration: np.ndarray | None = None
    ) -> Any:
        """Finds the texts with the highest cosines to each query by an exact search on all devices of the process.

        Args:
          queries: One text or several, or vectors, [D] or [Q, D]. Texts get the model's prompt 'query', if it has one.
          corpus: Texts or vectors [N, D]. Texts get the model's prompt 'document', 'passage' or 'corpus', if present.
            The search reads vectors in blocks, so they may be a memory map or the result of `load_vectors`.
            Text queries are encoded with the width of the corpus vectors, as binary vectors if the corpus is binary.
          top_k: The number of texts per query.
          calibration: The `calibration` with which `encode` made the int8 vectors.

        Returns:
          For each query a list of `{'index': …, 'score': …, 'text': …}`, the best first. Equal scores are in the order
          of the corpus. There is no `text` for a corpus of vectors. Vectors of NaN, and quantized vectors of zeros,
          stand for blank lines: they are never found, and as queries they find nothing.

        Raises:
          UserError: The widths or encodings differ, the precisions cannot be compared, or `calibration` does not fit.
        """
        top_k = check_value('top_k', top_k, integer(1, COUNT), 'for example top_k=10')
        self._check_sides(queries=queries, corpus=corpus)
        texts = None if _is_vectors(corpus) else as_text_list(corpus, 'corpus')
        ranges = _find_ranges(calibration, *(side for side in (corpus, queries) if _is_vectors(side)))
        documents = corpus if texts is None else self._vectors(texts, None, DOCUMENT)
        documents = documents[None] if len(documents.shape) == 1 else documents
        is_text = not _is_vectors(queries)
        vectors = self._vectors(queries, documents, QUERY, ranges) if is_text else _decode(queries, ranges)
        ranges = getattr(documents, 'ranges', ranges)
        _check_match('queries', vectors, documents, ranges)
        rows, found = np.atleast_2d(np.asarray(vectors)), []
        if len(rows) and len(documents):
            indices, scores = search(rows, documents, top_k, cosine=True, ranges=ranges)
            scores = np.where(rows.any(axis=1, keepdims=True), scores, -np.inf)  # quantized blank queries are zeros
            found = [_hits(*pair, texts) for pair in zip(indices.tolist(), scores.tolist(), strict=True)]
        found = found or [[] for _ in rows]
        return found[0] if len(vectors.shape) == 1 else found

    def rerank(self, query: str, texts: Sequence[str]) -> list[SearchHit]:
        """Orders texts by their relevance to a query.

        A cross-encoder scores the query with each text. A late-interaction model compares their token vectors.
        For other models, the score is the cosine of `search`.

        Returns:
          `{'index': …, 'score': …, 'text': …}` for each text, the best first.

        Raises:
          UserError: The model neither scores pairs nor embeds texts.
        """
        texts, queries = as_text_list(texts), as_text_list(query, 'query')
        if len(queries) != 1:
            raise UserError('query', f'{len(queries)} texts', 'one text', 'call rerank for each query')
        query = queries[0]
        scores = score_pairs(self._runner, [query] * len(texts), texts) if texts else []
        if scores is None:
            if self._model.sentence_modules is None and self._model.task is not None:
                found, fix = f'a model for {self._model.task.results}', 'train with configs/embed.py'
                raise UserError(self._model.where, found, 'a model that scores pairs or embeds texts', fix)
            return self.search(query, texts, len(texts))
        order = sorted(range(len(texts)), key=lambda i: -scores[i])
        return _hits(order, [scores[i] for i in order], texts)

    def _check_sides(self, **sides: Texts | Vectors) -> None:
        """Raises a UserError that names an argument with neither texts nor vectors.

        Also raises a UserError if texts are compared with a file of vectors that lacks the model's own encoding.
        """
        for name, side in sides.items():
            try:
                if not _is_vectors(side):
                    as_text_list(side, name)
            except UserError as error:
                fix = 'pass texts, or vectors as an array'
                raise UserError(error.where, error.found, error.expected, fix) from None
        encodings = [side.encoding for side in sides.values() if isinstance(side, VectorShards)]
        if not encodings or all(map(_is_vectors, sides.values())):
            return
        facts = resolve_encoding(self._model, pool='auto', normalize=None, layers=(-1,)).facts
        count = self._model.config.num_layers + 1  # of hidden states, with the embeddings; -1 is the last of them
        ours, theirs = (x | {'layers': [layer % count for layer in x['layers']]} for x in (facts, facts | encodings[0]))
        if names := [name for name in ours if theirs[name] != ours[name]]:
            found, expected = (', '.join(f'{name}={x[name]!r}' for name in names) for x in (theirs, ours))
            fix = "extract the vectors with this model's own encoding, or encode the texts like them, and give vectors"
            raise UserError('vectors', f'a file with {found}', f"{expected}, the model's own encoding", fix)

    def _vectors(
        self, texts: Texts, like: Vectors | None, prompts: Sequence[str], ranges: np.ndarray | None = None
    ) -> np.ndarray:
        """Encodes texts with the width of other vectors, and with their precision unless it is int8.

        If `like`, the other vectors, is None, the result is float32 with the model's width. The texts get the first of
        the `prompts` that the model has; () means the default prompt. `ranges` is float32 [2, D] for int8 vectors, or
        None if unknown.
        """
        prompt = find_prompt(self._model, prompts) if prompts else None
        if like is None:
            return self.encode(texts, prompt=prompt)
        precision = _precision(like)
        if precision == 'int8' and ranges is None:
            fix = 'give the calibration of the int8 vectors, or vectors instead of texts'
            raise UserError('calibration', 'None, with int8 vectors', 'the calibration of these vectors', fix)
        options = {'truncate_dim': like.shape[-1]}
        if precision == 'binary':
            options = {'truncate_dim': 8 * like.shape[-1], 'precision': 'binary'}
        try:
            return self.encode(texts, prompt=prompt, **options)
        except UserError as error:
            if error.where != 'truncate_dim':  # the caller has no `truncate_dim`, so its error is reworded
                raise
            found = f'width {error.found}'
            raise UserError('vectors', found, error.expected, 'encode all texts with this model') from None


def _find_ranges(calibration: np.ndarray | None, *vectors: Vectors | None) -> np.ndarray | None:
    """Returns the ranges of `calibration`, or else the first ranges of int8 `vectors`: float32 [2, D], or None."""
    coded = [x for x in vectors if x is not None and _precision(x) == 'int8']
    if calibration is None:
        return next((x.ranges for x in coded if isinstance(x, VectorShards)), None)
    if not coded:
        raise UserError('calibration', 'vectors, but no int8 vectors to compare', 'None', 'leave it out')
    return calibrated_ranges('calibration', np.asarray(calibration), coded[0].shape[-1])


def _decode(x: Vectors, ranges: np.ndarray | None) -> Vectors:
    """Dequantizes int8 vectors with their own ranges, or else with `ranges` unless these are None."""
    ranges = getattr(x, 'ranges', ranges)
    return x if ranges is None or _precision(x) != 'int8' else np.asarray(dequantize(jnp.asarray(x[:]), ranges))


def _is_vectors(x: Any) -> bool:
    is_array = isinstance(x, jax.Array | np.ndarray) and x.ndim > 0 and x.dtype.kind not in 'OSUT'
    return is_array or isinstance(x, VectorShards)


def _precision(x: Vectors) -> str | None:
    """Returns the precision of vectors: 'float32' for any floating dtype, another key of PRECISIONS, or None."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return 'float32'
    return next((name for name, dtype in PRECISIONS.items() if x.dtype == dtype), None)


def _check_match(name: str, x: Vectors, y: Vectors, ranges: np.ndarray | None = None) -> None:
    for side in (x, y):
        if len(side.shape) not in (1, 2) or _precision(side) is None:
            raise UserError(name, f'{side.dtype} {list(side.shape)}', 'vectors [N, D]', 'pass what `encode` returns')
    kinds = {_precision(x), _precision(y)}
    if x.shape[-1] != y.shape[-1] or (len(kinds) > 1 and (ranges is None or 'binary' in kinds)):
        found = f'{x.dtype} vectors of width {x.shape[-1]} and {y.dtype} vectors of width {y.shape[-1]}'
        raise UserError(name, found, 'the same precision and width', 'encode both with the same arguments')


def _hits(indices: Sequence[int], scores: Sequence[float], texts: Sequence[str] | None) -> list[SearchHit]:
    hits = [{'index': i, 'score': score} for i, score in zip(indices, scores, strict=True) if score > -np.inf]
    return hits if texts is None else [{**hit, 'text': texts[hit['index']]} for hit in hits]
