"""Losses and accuracies as sums and weights: the division happens once, globally, at the end."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Negative log probability of each label.

    Args:
      logits: float32 [..., C].
      labels: int32 [...], within C.

    Returns:
      float32 [...].
    """
    # A comparison instead of a gather: with C split over devices no logits need to be collected.
    hit = jnp.arange(logits.shape[-1]) == labels[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(hit, logits, 0.0).sum(-1)


def weighted(logits: jax.Array, labels: jax.Array, weights: jax.Array, name: str) -> dict[str, tuple]:
    """{name_loss: (sum, weight), name_accuracy: (sum, weight)} of a classification, float32 scalars."""
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    total = weights.sum()
    right = (logits.argmax(-1) == labels).astype(jnp.float32)
    return {
        f'{name}_loss': ((cross_entropy(logits, labels) * weights).sum(), total),
        f'{name}_accuracy': ((right * weights).sum(), total),
    }


def pretraining_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Losses and accuracies of a pre-training batch (the names of data/batch.py).

    Returns:
      mlm_loss, mlm_accuracy and, where the outputs have `nsp_logits`, nsp_loss and nsp_accuracy; each
      (sum, weight), float32 scalars. The weight may be 0.
    """
    losses = weighted(outputs['mlm_logits'], batch['masked_ids'], batch['masked_weights'], 'mlm')
    if 'nsp_logits' in outputs:
        losses |= weighted(outputs['nsp_logits'], batch['nsp_labels'], batch['nsp_weights'], 'nsp')
    return losses


def pretraining_weights(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Weights of the losses that pre-training minimises, from the batch alone: {name: float32 scalar}."""
    return {'mlm_loss': batch['masked_weights'].sum(), 'nsp_loss': batch['nsp_weights'].sum()}


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model is trained for, in terms of the arrays of its batches.

    Attributes:
      inputs: arrays of a batch that the model takes, in the order of its arguments.
      losses: (outputs, batch) -> {name: (sum, weight)}: what is reported for a batch.
      weights: batch -> {name: weight}: the losses that are minimised (the sum of their means), with their weights,
        which depend on the batch alone.
    """

    inputs: tuple[str, ...]
    losses: Callable[[Any, Mapping[str, jax.Array]], dict[str, tuple[jax.Array, jax.Array]]]
    weights: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]


PRETRAINING = Objective(
    ('input_ids', 'segment_ids', 'attention_mask', 'masked_positions'), pretraining_losses, pretraining_weights
)

TASK_INPUTS = ('input_ids', 'segment_ids', 'attention_mask')


def classification_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Cross entropy of `logits` [B, C] and int32 `labels` [B] (classes, or the right one of C endings)."""
    losses = weighted(outputs['logits'], batch['labels'], batch['weights'], 'label')
    return {'loss': losses['label_loss'], 'accuracy': losses['label_accuracy']}


def build_class_weighted(class_weights: Sequence[float]) -> Objective:
    """CLASSIFICATION in which a row counts as much as its class: Σ w ℓ / Σ w, as torch's CrossEntropyLoss(weight=w).

    The accuracy is that of the rows. Only the ratios of the C weights matter: here the smallest is 1.
    """
    table = tuple(weight / min(class_weights) for weight in class_weights)

    def rows(batch: Mapping[str, jax.Array]) -> jax.Array:
        return batch['weights'] * jnp.asarray(table, jnp.float32)[batch['labels']]  # [B]

    def losses(outputs: Any, batch: Mapping[str, jax.Array]) -> dict[str, tuple[jax.Array, jax.Array]]:
        counted = classification_losses(outputs, {**batch, 'weights': rows(batch)})
        return {**classification_losses(outputs, batch), 'loss': counted['loss']}

    return Objective(TASK_INPUTS, losses, lambda batch: {'loss': rows(batch).sum()})


def choice_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """`classification_losses` of questions of which some have fewer than C endings: a sequence without tokens is none,
    and cannot be chosen."""
    absent = batch['attention_mask'][..., 0] == 0  # [B, C]
    return classification_losses({'logits': jnp.where(absent, -1e9, outputs['logits'])}, batch)


def multi_label_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array], positive: Sequence[float] | None = None
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Binary cross entropy of `logits` [B, C] with float32 `labels` [B, C] of 0 and 1, of a row the mean over the C
    labels: torch's BCEWithLogitsLoss. `accuracy` is the share of the decisions that are right, at a probability of 0.5,
    whatever threshold the figures of the task have.

    Args:
      outputs, batch: see Objective.
      positive: C weights of the labels that are there, torch's pos_weight; None for 1.
    """
    logits, labels, weights = outputs['logits'].astype(jnp.float32), batch['labels'], batch['weights']
    there = labels if positive is None else labels * jnp.asarray(positive, jnp.float32)  # [B, C]
    each = there * jax.nn.softplus(-logits) + (1 - labels) * jax.nn.softplus(logits)  # [B, C]
    right = ((logits > 0) == (labels > 0)).astype(jnp.float32)  # [B, C]
    total = weights.sum()
    return {'loss': ((each.mean(-1) * weights).sum(), total), 'accuracy': ((right.mean(-1) * weights).sum(), total)}


def build_label_weighted(positive: Sequence[float]) -> Objective:
    """MULTI_LABEL with weights of the labels that are there, see `multi_label_losses`."""
    return Objective(TASK_INPUTS, functools.partial(multi_label_losses, positive=tuple(positive)), _row_weights)


def regression_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Squared error of the only column of `logits` [B, 1] and float32 `labels` [B]."""
    error = jnp.square(outputs['logits'][:, 0] - batch['labels'])  # [B]
    return {'loss': ((error * batch['weights']).sum(), batch['weights'].sum())}


def token_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Cross entropy of `token_logits` [B, S, C] and int32 `token_labels` [B, S] where `token_weights` [B, S] is 1."""
    losses = weighted(outputs['token_logits'], batch['token_labels'], batch['token_weights'], 'token')
    return {'loss': losses['token_loss'], 'accuracy': losses['token_accuracy']}


def span_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Mean of the cross entropies of `start_logits` and `end_logits` [B, S] with int32 `start` and `end` [B].

    Padding cannot be chosen, so that the loss of a row does not depend on how far its batch is padded. In transformers,
    and in google-research/bert, whose rows all have one length, it can.
    """
    padding = jnp.where(batch['attention_mask'] > 0, 0.0, -1e9)  # [B, S]
    first = weighted(outputs['start_logits'] + padding, batch['start'], batch['weights'], 'start')
    last = weighted(outputs['end_logits'] + padding, batch['end'], batch['weights'], 'end')
    (a, weight), (b, _) = first['start_loss'], last['end_loss']
    return {
        'loss': ((a + b) / 2, weight),
        'start_accuracy': first['start_accuracy'],
        'end_accuracy': last['end_accuracy'],
    }


def _row_weights(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {'loss': batch['weights'].sum()}


CLASSIFICATION = Objective(TASK_INPUTS, classification_losses, _row_weights)
CHOICES = Objective(TASK_INPUTS, choice_losses, _row_weights)
MULTI_LABEL = Objective(TASK_INPUTS, multi_label_losses, _row_weights)
REGRESSION = Objective(TASK_INPUTS, regression_losses, _row_weights)
SPANS = Objective(TASK_INPUTS, span_losses, _row_weights)
TOKENS = Objective(TASK_INPUTS, token_losses, lambda batch: {'loss': batch['token_weights'].sum()})
