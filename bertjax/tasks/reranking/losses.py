"""Losses of rerankers. Logits are [B, M] for B lists of M texts, the positive first.

Logits of B scored pairs, and of lists of a single text, are [B].
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.losses import Arrays, DistillLoss, Objective
from bertjax.tasks.embedding.losses import RowLoss, listwise_margin_mse, listwise_softmax, make_objective, mean_of


def _present(batch: Arrays) -> jax.Array:
    return batch['attention_mask'][..., 0] > 0  # [B] or [B, M]


def binary_cross_entropy(logits: jax.Array, batch: Arrays) -> jax.Array:
    """Computes the binary cross entropy [B] of logits [B]. The `labels` [B] are targets from 0 to 1."""
    return jax.nn.softplus(logits) - batch['labels'] * logits


def squared_error(logits: jax.Array, batch: Arrays) -> jax.Array:
    """Computes the squared error [B] of the logits against `labels`; for a list, the mean over its texts."""
    error = jnp.square(logits - batch['labels'].reshape(logits.shape))
    return error if error.ndim == 1 else mean_of(error, _present(batch))


def _list_loss(function: Any, logits: jax.Array, batch: Arrays) -> jax.Array:
    scores, present = (x.reshape(len(logits), -1) for x in (logits, _present(batch)))
    return function(scores, present, batch.get('labels'))


# For each form of records, the first loss that accepts this form is the default.
LOSSES = {
    'bce': RowLoss(binary_cross_entropy, ('scored',), score_range=(0, 1)),
    'margin_mse': RowLoss(functools.partial(_list_loss, listwise_margin_mse), ('distilled',), needs_negatives=True),
    'softmax': RowLoss(functools.partial(_list_loss, listwise_softmax), ('pairs', 'distilled'), needs_negatives=True),
    'mse': RowLoss(squared_error, ('scored', 'distilled')),
}


def _distill(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    """Computes the `squared_error` [B] against the teacher's logits. The temperature has no effect."""
    return squared_error(student['logits'], {**batch, 'labels': teacher['logits']})


def build_objective(loss: str) -> Objective:
    """Builds the objective of the loss LOSSES[loss]."""
    return make_objective(LOSSES[loss].rows, 'logits', distill_loss=DistillLoss(_distill, uses_temperature=False))
