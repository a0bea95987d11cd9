"""Exact search for the most similar vectors on all devices of the process, in blocks that bound the memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bertjax.model.quantization import cosine_similarity

# The numbers of rows in a block of queries and of documents. The similarities of two blocks take 64 MiB.
QUERIES, DOCUMENTS = 1024, 16384


def search(
    queries: np.ndarray, documents: np.ndarray, count: int, *, cosine: bool = False, ranges: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the documents with the largest inner products. Among equal products, the lowest index comes first.

    Args:
      queries: float32 [Q, D], Q at least 1. A query of NaN finds nothing.
      documents: float32 [N, D], or quantized if `cosine` is True; N at least 1; may be a memory map. A row of NaN
        (floats) or zeros (integers) stands for an absent document, which is never found.
      count: The number of documents to find for each query. K is the smaller of this number and N.
      cosine: Whether to find the largest cosines instead of the largest inner products.
      ranges: float32 [2, D], the ranges of quantized vectors; see `model.quantization.cosine_similarity`.

    Returns:
      The indices, int32 [Q, K], and the inner products or cosines, float32 [Q, K], in descending order. If fewer than K
      documents are found, the remaining scores are -inf.
    """
    count, devices = min(count, len(documents)), len(jax.local_devices())
    rows = -(-min(DOCUMENTS, len(documents)) // devices) * devices
    found: list[tuple[np.ndarray, np.ndarray]] = []
    # This mesh replaces the caller's, because `shard_map` allows no other mesh than the current one.
    with jax.set_mesh(Mesh(np.array(jax.local_devices()), ('devices',))):
        for begin in range(0, len(queries), QUERIES):
            part = queries[begin : begin + QUERIES]
            block = _pad(part, min(QUERIES, len(queries)))
            best = jnp.full((len(block), count), -jnp.inf), jnp.zeros((len(block), count), jnp.int32)
            for first in range(0, len(documents), rows):
                numbers = np.arange(first, first + rows, dtype=np.int32)
                candidates = _pad(documents[first : first + rows], rows)
                numbers = np.where(numbers < len(documents), numbers, -1)
                best = _merge(best, block, candidates, numbers, ranges, cosine=cosine)
            found.append(tuple(np.asarray(x)[: len(part)] for x in best))
    scores, indices = (np.concatenate(x) for x in zip(*found, strict=True))
    return indices, scores


def _pad(x: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(x, ((0, rows - len(x)), (0, 0)))


@functools.partial(jax.jit, static_argnames='cosine')
def _merge(
    best: tuple[jax.Array, jax.Array],
    queries: jax.Array,
    documents: jax.Array,
    numbers: jax.Array,
    ranges: jax.Array | None,
    *,
    cosine: bool,
) -> tuple[jax.Array, jax.Array]:
    """Merges a block of documents into `best`, the scores and indices [Q, K] so far. Padding has the `numbers` -1."""
    count, split = best[0].shape[1], PartitionSpec('devices')

    def search_part(queries, documents, numbers, ranges):
        if cosine:
            scores = cosine_similarity(queries, documents, ranges)
        else:
            scores = jnp.einsum('qd,nd->qn', queries, documents, precision='highest')
        if jnp.issubdtype(documents.dtype, jnp.integer):  # a row of zeros is an absent document
            numbers = jnp.where(documents.any(axis=1), numbers, -1)
        scores = jnp.where((numbers < 0) | jnp.isnan(scores), -jnp.inf, scores)
        scores, found = jax.lax.top_k(scores, min(count, len(documents)))
        return scores, numbers[found]

    columns = PartitionSpec(None, 'devices')
    search_parts = jax.shard_map(
        search_part, in_specs=(PartitionSpec(), split, split, PartitionSpec()), out_specs=(columns, columns)
    )
    parts = search_parts(queries, documents, numbers, ranges)
    # Among equal scores, earlier documents come first, because top_k prefers the lower position.
    scores, indices = (jnp.concatenate(pair, axis=1) for pair in zip(best, parts, strict=True))
    scores, found = jax.lax.top_k(scores, count)
    return scores, jnp.take_along_axis(indices, found, axis=1)
