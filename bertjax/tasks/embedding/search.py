"""Exact search of the most similar vectors, in blocks that bound the memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

QUERIES, DOCUMENTS = 1024, 16384  # the rows of a block of queries and of documents: 64 MiB of similarities


def search(queries: np.ndarray, documents: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the documents with the largest inner products; of equal ones, those with the lowest index.

    Args:
      queries: float32 [Q, D].
      documents: float32 [N, D], N at least 1.
      count: The number K of documents per query; at most N are found.

    Returns:
      The indices, int32 [Q, K], and the inner products, float32 [Q, K], in descending order.
    """
    count = min(count, len(documents))
    rows = min(DOCUMENTS, -(-len(documents) // 8) * 8)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for begin in range(0, len(queries), QUERIES):
        block = _pad(queries[begin : begin + QUERIES], min(QUERIES, len(queries)))
        scores = jnp.full((len(block), count), -jnp.inf)
        indices = jnp.zeros((len(block), count), jnp.int32)
        for first in range(0, len(documents), rows):
            part = documents[first : first + rows]
            scores, indices = _merge(scores, indices, block, _pad(part, rows), first, len(part), count=count)
        real = min(QUERIES, len(queries) - begin)
        found.append((np.asarray(indices)[:real], np.asarray(scores)[:real]))
    indices, scores = zip(*found, strict=True)
    return np.concatenate(indices), np.concatenate(scores)


def _pad(x: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(x, ((0, rows - len(x)), (0, 0)))


@functools.partial(jax.jit, static_argnames='count')
def _merge(scores, indices, queries, documents, first, real, *, count):
    """Merges the best documents so far, [Q, K], with those of a block whose first `real` rows are documents."""
    new = jnp.einsum('qd,nd->qn', queries, documents, precision='highest')
    numbers = jnp.arange(len(documents), dtype=jnp.int32)
    new = jnp.where(numbers < real, new, -jnp.inf)
    # Earlier documents come first: top_k prefers the lower position among equal values.
    best, position = jax.lax.top_k(jnp.concatenate([scores, new], axis=1), count)
    numbers = jnp.concatenate([indices, jnp.broadcast_to(first + numbers, new.shape)], axis=1)
    return best, jnp.take_along_axis(numbers, position, axis=1)
