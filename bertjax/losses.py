"""Losses and accuracies as sums and weights: the division happens once, globally, at the end."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.data.features import INPUTS
from bertjax.parallel.partition import platform


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
    normaliser = _log_sum_exp if platform() == 'cpu' else functools.partial(jax.nn.logsumexp, axis=-1)
    return normaliser(logits) - jnp.where(hit, logits, 0.0).sum(-1)


@jax.custom_vjp
def _log_sum_exp(logits: jax.Array) -> jax.Array:
    """`jax.nn.logsumexp` over the last dimension, which keeps no exponentials for the backward pass: on a CPU it takes
    longer to write and read them than to compute them again."""
    return _log_sum_exp_forward(logits)[0]


def _log_sum_exp_forward(logits: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    largest = logits.max(-1, keepdims=True)
    total = jnp.exp(logits - largest).sum(-1, keepdims=True)
    return (largest + jnp.log(total))[..., 0], (logits, largest, total)


def _log_sum_exp_gradient(saved: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[jax.Array]:
    logits, largest, total = jax.lax.optimization_barrier(saved)  # or XLA keeps those of the forward pass
    return ((cotangent[..., None] / total) * jnp.exp(logits - largest),)


_log_sum_exp.defvjp(_log_sum_exp_forward, _log_sum_exp_gradient)


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
class Soft:
    """What a teacher's outputs teach a student of the same head.

    Attributes:
      each: (outputs, the teacher's, batch, temperature) -> a loss for each of what `weights` weighs, float32.
      weights: the array of a batch with their weights.
    """

    each: Callable[[Any, Any, Mapping[str, jax.Array], float], jax.Array]
    weights: str = 'weights'


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model is trained for, in terms of the arrays of its batches.

    Attributes:
      inputs: arrays of a batch that the model takes, in the order of its arguments.
      losses: (outputs, batch) -> {name: (sum, weight)}: what is reported for a batch.
      weights: batch -> {name: weight}: the losses that are minimised (the sum of their means), with their weights,
        which depend on the batch alone.
      soft: what a teacher of the same kind teaches by its outputs; None where that is not defined.
      factors: how much a loss that is minimised counts; 1 for those that are not named.
      capture: what the model computes on its way (model/capture.py) that `losses` find among the outputs.
      teacher_fn: (a teacher's parameters, batch) -> what it says of the batch, which `losses` find there as `teacher`.
      init_aux: key -> parameters of the objective itself, boxed, trained with the model's and kept beside them as
        OWN; `losses` find them among the outputs.
    """

    inputs: tuple[str, ...]
    losses: Callable[[Any, Mapping[str, jax.Array]], dict[str, tuple[jax.Array, jax.Array]]]
    weights: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]
    soft: Soft | None = None
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    capture: tuple[str, ...] = ()
    teacher_fn: Callable[[Any, Mapping[str, jax.Array]], Any] | None = None
    init_aux: Callable[[jax.Array], Any] | None = None


AUX = 'objective'  # among a model's parameters: those of its objective


def divergence(logits: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """T² KL(teacher ‖ student) of the softmax over the last dimension, both at temperature T (Hinton et al. 2015, arXiv
    1503.02531, section 2, which has T² so that the gradient keeps its size).

    Args:
      logits, teacher: float32 [..., C].
      temperature: T.

    Returns:
      float32 [...].
    """
    student = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    teacher = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    return temperature**2 * (jnp.exp(teacher) * (teacher - student)).sum(-1)


PRETRAINING = Objective(
    (*INPUTS, 'masked_positions'),
    pretraining_losses,
    pretraining_weights,
    Soft(lambda own, teacher, batch, t: divergence(own['mlm_logits'], teacher['mlm_logits'], t), 'masked_weights'),
)

# The same on packed rows: the arrays of the pairs have an axis of examples, and nothing else is different.
PACKED_PRETRAINING = dataclasses.replace(
    PRETRAINING, inputs=(*PRETRAINING.inputs, 'sequence_ids', 'position_ids', 'cls_positions')
)


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

    return dataclasses.replace(CLASSIFICATION, losses=losses, weights=lambda batch: {'loss': rows(batch).sum()})


def choice_losses(
    outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """`classification_losses` of questions of which some have fewer than C endings: a sequence without tokens is none,
    and cannot be chosen."""
    return classification_losses({'logits': _of_endings(outputs['logits'], batch)}, batch)


def _of_endings(logits: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
    absent = batch['attention_mask'][..., 0] == 0  # [B, C]
    return jnp.where(absent, -1e9, logits)


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
    return dataclasses.replace(MULTI_LABEL, losses=functools.partial(multi_label_losses, positive=tuple(positive)))


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


def _soft_classes(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    return divergence(own['logits'], teacher['logits'], temperature)  # [B]


def _soft_choices(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    return divergence(*(_of_endings(x['logits'], batch) for x in (own, teacher)), temperature)  # [B]


def _soft_labels(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    """Each label is a choice between two, with the logits x and 0; of a row the mean over the labels [B]."""
    pairs = (jnp.stack([x['logits'], jnp.zeros_like(x['logits'])], -1) for x in (own, teacher))
    return divergence(*pairs, temperature).mean(-1)


def _soft_scores(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    """Squared distance [B] from the teacher's score, which has no temperature."""
    return jnp.square(own['logits'] - teacher['logits'])[:, 0]


def _soft_spans(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    """Mean of first and last token [B]; padding cannot be chosen."""
    padding = jnp.where(batch['attention_mask'] > 0, 0.0, -1e9)  # [B, S]
    ends = ('start_logits', 'end_logits')
    return sum(divergence(own[name] + padding, teacher[name] + padding, temperature) for name in ends) / 2


def _soft_tokens(own: Any, teacher: Any, batch: Mapping[str, jax.Array], temperature: float) -> jax.Array:
    return divergence(own['token_logits'], teacher['token_logits'], temperature)  # [B, S]


CLASSIFICATION = Objective(INPUTS, classification_losses, _row_weights, Soft(_soft_classes))
CHOICES = Objective(INPUTS, choice_losses, _row_weights, Soft(_soft_choices))
MULTI_LABEL = Objective(INPUTS, multi_label_losses, _row_weights, Soft(_soft_labels))
REGRESSION = Objective(INPUTS, regression_losses, _row_weights, Soft(_soft_scores))
SPANS = Objective(INPUTS, span_losses, _row_weights, Soft(_soft_spans))
TOKENS = Objective(
    INPUTS, token_losses, lambda batch: {'loss': batch['token_weights'].sum()}, Soft(_soft_tokens, 'token_weights')
)
