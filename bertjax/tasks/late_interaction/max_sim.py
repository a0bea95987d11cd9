"""MaxSim: the losses of late interaction, and an exact search.

A row of a batch has C texts: a query, its positive and negatives.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.data.features import INPUTS
from bertjax.losses import Arrays, Objective
from bertjax.tasks.embedding.losses import (
    TEXT_IDS,
    RowLoss,
    in_batch_cross_entropy,
    listwise_divergence,
    listwise_margin_mse,
    listwise_softmax,
    make_objective,
)

ROLES = 'token_roles'  # the token array with the role of each token, see task.py
_LOSS_QUERIES = 8  # the number of queries that `info_nce` compares with all documents at once
# The rows in a block of queries and of documents in `search`. Blocks are padded to a multiple of LENGTHS tokens.
QUERIES, DOCUMENTS, LENGTHS = 16, 256, 32


def max_sim(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """Computes Σ_q max_s q · d_s over the tokens of each pair (arXiv 2004.12832, equation 3).

    `queries`, float32 [..., Q, D], and `documents`, float32 [..., S, D], broadcast to scores, float32 [...]. Zero
    vectors are absent tokens. A document without tokens has the score 0.
    """
    similarity = jnp.einsum('...qd,...sd->...qs', queries, documents, precision='highest')
    present = (documents != 0).any(-1)[..., None, :]  # [..., 1, S]
    largest = jnp.where(present, similarity, -jnp.inf).max(-1)  # [..., Q]
    return jnp.where(present.any(-1), largest, 0.0).sum(-1)


def info_nce(x: jax.Array, batch: Arrays, *, query_len: int, scale: float = 1.0) -> jax.Array:
    """Computes embedding/losses.py:info_nce [B] with MaxSim as the similarity of queries and documents."""
    documents = x[:, 1:].swapaxes(0, 1).reshape(-1, *x.shape[2:])  # [(C - 1)·B, S, D], positives first

    # The products of all tokens may not fit in memory, so they are computed in blocks and recomputed for the gradient.
    score = jax.checkpoint(lambda query: max_sim(query, documents))
    similarity = jax.lax.map(score, x[:, 0, :query_len], batch_size=_LOSS_QUERIES)  # [B, (C - 1)·B]
    return in_batch_cross_entropy(similarity, batch[TEXT_IDS], scale=scale)


def _list_loss(function: Any, x: jax.Array, batch: Arrays, *, query_len: int) -> jax.Array:
    scores = max_sim(x[:, :1, :query_len], x[:, 1:])  # [B, C - 1]
    return function(scores, batch[TEXT_IDS][:, 1:] > 0, batch.get('labels'))


# The first loss that accepts a form is the default for this form.
LOSSES = {
    'info_nce': RowLoss(info_nce, ('pairs',), ('scale',)),
    'softmax': RowLoss(functools.partial(_list_loss, listwise_softmax), ('pairs',), needs_negatives=True),
    'kl': RowLoss(functools.partial(_list_loss, listwise_divergence), ('distilled',), needs_negatives=True),
    'margin_mse': RowLoss(functools.partial(_list_loss, listwise_margin_mse), ('distilled',), needs_negatives=True),
}


def build_objective(loss: str, query_len: int, **options: Any) -> Objective:
    """Builds the objective of a loss of LOSSES on `token_vectors` [B, C, S, D]. `options` are arguments of the loss."""
    rows = functools.partial(LOSSES[loss].rows, query_len=query_len, **options)
    return make_objective(rows, 'token_vectors', (*INPUTS, ROLES), whole_batch=True)


def search(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the documents with the highest MaxSim, on all devices of the process, in blocks that bound the memory.

    Among equal scores, the lowest index comes first.

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
