"""MaxSim, and the losses of late interaction. A row of a batch has C texts: a query, its positive and negatives."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

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

ROLES = 'token_roles'
_QUERIES = 8  # the number of queries in a block, which is compared with all documents at once


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
    similarity = jax.lax.map(score, x[:, 0, :query_len], batch_size=_QUERIES)  # [B, (C - 1)·B]
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
