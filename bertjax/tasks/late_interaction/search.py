"""Exact search by MaxSim on all devices of the process, in blocks that bound the memory."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.tasks.late_interaction.losses import max_sim

# The numbers of rows in a block of queries and of documents. Blocks are padded to a multiple of LENGTHS tokens.
QUERIES, DOCUMENTS, LENGTHS = 16, 256, 32


def search(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the documents with the highest MaxSim. Among equal scores, the lowest index comes first.

    Args:
      queries, documents: The token vectors of each of Q queries and N documents, float32 [S, D].
      count: The number of documents to find for each query. K is the smaller of this number and N.

    Returns:
      The indices, int32 [Q, K], and the scores, float32 [Q, K], in descending order.
    """
    order = np.argsort([len(x) for x in documents], kind='stable')  # documents of similar length share a block
    indices, scores = np.empty((len(queries), 0), np.int32), np.empty((len(queries), 0), np.float32)
    sharding = NamedSharding(Mesh(np.array(jax.local_devices()), ('devices',)), PartitionSpec('devices'))
    rows = -(-min(DOCUMENTS, len(documents)) // len(jax.local_devices())) * len(jax.local_devices())
    query_blocks = [_stack(queries[i : i + QUERIES], QUERIES) for i in range(0, len(queries), QUERIES)]
    for first in range(0, len(documents), rows):
        numbers = order[first : first + rows]
        block = jax.device_put(_stack([documents[i] for i in numbers], rows), sharding)
        part = np.concatenate([np.asarray(_scores(query_block, block)) for query_block in query_blocks])
        scores = np.concatenate([scores, part[: len(queries), : len(numbers)]], axis=1)
        indices = np.concatenate([indices, np.tile(numbers.astype(np.int32), (len(queries), 1))], axis=1)
        best = np.lexsort((indices, -scores))[:, :count]
        indices, scores = np.take_along_axis(indices, best, axis=1), np.take_along_axis(scores, best, axis=1)
    return indices, scores


def _stack(vectors: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Stacks arrays [S, D] to [rows, L, D], padded with zeros. L is a multiple of LENGTHS."""
    length = -(-max(map(len, vectors)) // LENGTHS) * LENGTHS
    stacked = np.zeros((rows, length, vectors[0].shape[1]), np.float32)
    for row, x in zip(stacked, vectors, strict=False):
        row[: len(x)] = x
    return stacked


@jax.jit
def _scores(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """Computes the scores [Q, N] of queries [Q, S, D] and documents [N, L, D], one query at a time."""
    return jax.lax.map(lambda query: max_sim(query, documents), jnp.asarray(queries))
