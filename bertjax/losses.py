"""Losses and accuracies as pairs (sum, weight). Sums are divided by weights once, for the full batch."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.data.features import INPUTS
from bertjax.model.config import VOCABULARY_MULTIPLE
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.partition import platform, shard_count

Arrays = Mapping[str, jax.Array]  # the outputs of a model, or a batch
Losses = dict[str, tuple[jax.Array, jax.Array]]  # {name of a loss or an accuracy: (sum, weight)}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns -log softmax(logits)[label], float32 [...], for float32 logits [..., C] and int32 labels [...]."""
    if _has_all_classes_on_cpu():
        return _cross_entropy_on_cpu(logits, labels)
    # If C is sharded, a gather would need the full logits on each device. A comparison does not.
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(is_label, logits, 0.0).sum(-1)


@jax.custom_vjp
def _cross_entropy_on_cpu(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes `cross_entropy` and its gradient in fewer passes over the logits.

    The backward pass recomputes the exponentials, because storing and reloading them would take longer.
    """
    return _cross_entropy_forward(logits, labels)[0]


def _cross_entropy_forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    blocks, maxima = _blocks(logits)
    largest = maxima.max(-1, keepdims=True)
    total = jnp.exp(blocks - largest[..., None]).sum((-2, -1))[..., None]
    # As in `cross_entropy`, the logit of a label outside the classes counts as 0. A negative index would wrap around.
    index = jnp.where(labels < 0, logits.shape[-1], labels)[..., None]
    own = jnp.take_along_axis(logits, index, axis=-1, mode='fill', fill_value=0.0)
    return (largest + jnp.log(total) - own)[..., 0], (logits, labels, largest, total)


def _cross_entropy_gradient(residuals: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[jax.Array, None]:
    # Without the barrier, XLA would save the exponentials of the forward pass.
    logits, labels, largest, total = jax.lax.optimization_barrier(residuals)
    cotangent = cotangent[..., None]
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    return (cotangent / total) * jnp.exp(logits - largest) - jnp.where(is_label, cotangent, 0.0), None


_cross_entropy_on_cpu.defvjp(_cross_entropy_forward, _cross_entropy_gradient)


def _has_all_classes_on_cpu() -> bool:
    """Returns whether the current trace is for CPU devices, each of which holds the logits of all classes."""
    return platform() == 'cpu' and shard_count('act_vocab') == 1


def _blocks(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns logits [..., C] in N blocks [..., N, C / N], and the maxima [..., N] of the blocks."""
    count = logits.shape[-1]
    size = VOCABULARY_MULTIPLE if count % VOCABULARY_MULTIPLE == 0 else count
    blocks = logits.reshape(*logits.shape[:-1], count // size, size)
    # Without the barrier, XLA would fuse the maxima into the next reduction, so loss and accuracy could not share them.
    return blocks, jax.lax.optimization_barrier(blocks.max(-1))


def _argmax_on_cpu(logits: jax.Array) -> jax.Array:
    """Computes `logits.argmax(-1)`. XLA:CPU computes maxima several times faster than an argmax."""
    blocks, maxima = _blocks(jax.lax.stop_gradient(logits))
    block = maxima.argmax(-1)[..., None]
    within = jnp.take_along_axis(blocks, block[..., None], axis=-2)[..., 0, :].argmax(-1)
    return block[..., 0] * blocks.shape[-1] + within


def classification_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array, prefix: str = '') -> Losses:
    """Returns {PREFIXloss: (sum, weight), PREFIXaccuracy: (sum, weight)} of a classification, as float32 scalars."""
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    total = weights.sum()
    most_probable = _argmax_on_cpu(logits) if _has_all_classes_on_cpu() else logits.argmax(-1)
    correct = (most_probable == labels).astype(jnp.float32)
    return {
        f'{prefix}loss': ((cross_entropy(logits, labels) * weights).sum(), total),
        f'{prefix}accuracy': ((correct * weights).sum(), total),
    }


def pretraining_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes mlm_loss, mlm_accuracy and, if the outputs have `nsp_logits`, nsp_loss and nsp_accuracy.

    The arrays of the batch are named as in data/batch.py. All weights of a loss may be 0.
    """
    losses = classification_sums(outputs['mlm_logits'], batch['masked_ids'], batch['masked_weights'], 'mlm_')
    if 'nsp_logits' in outputs:
        losses |= classification_sums(outputs['nsp_logits'], batch['nsp_labels'], batch['nsp_weights'], 'nsp_')
    return losses


@dataclasses.dataclass(frozen=True)
class DistillLoss:
    """The loss between the outputs of a student and of a teacher with the same head.

    Attributes:
      elements: (student outputs, teacher outputs, batch, temperature) -> float32, the loss of each row or token.
      weights: The name of the batch array with the weights of the rows or tokens.
      uses_temperature: Whether `elements` depends on the temperature.
    """

    elements: Callable[[Any, Any, Arrays, float], jax.Array]
    weights: str = 'weights'
    uses_temperature: bool = True


@dataclasses.dataclass(frozen=True)
class Objective:
    """A training objective, in terms of the arrays of a batch.

    Attributes:
      inputs: The batch arrays that the model takes, in the order of its arguments.
      losses: (outputs, batch) -> {name: (sum, weight)}, the reported losses and accuracies of a batch.
      weights: batch -> {name: weight} for the losses that are minimized. Training minimizes Σ factor · sum / weight
        over these losses.
      distill_loss: The loss between the outputs of student and teacher; None if the head does not support one.
      factors: {name: factor} of the minimized losses; the default factor is 1.
      capture: The intermediate values to capture (model/capture.py). They are passed to `losses` among the outputs.
      teacher_fn: (teacher parameters, batch) -> teacher outputs. They are passed to `losses` as `batch['teacher']`.
      init_aux: PRNG key -> boxed parameters of the objective. They are trained, stored beside the parameters of the
        model under the key AUX, and passed to `losses` among the outputs.
      keywords: The batch arrays that the model takes as keyword arguments.
      whole_batch: Whether `losses` compares the rows of a batch with each other. If so, `losses` gets the outputs for
        all rows, and a batch without the inputs of the model (training/whole_batch.py).
    """

    inputs: tuple[str, ...]
    losses: Callable[[Any, Arrays], Losses]
    weights: Callable[[Arrays], dict[str, jax.Array]]
    distill_loss: DistillLoss | None = None
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    capture: tuple[str, ...] = ()
    teacher_fn: Callable[[Any, Arrays], Any] | None = None
    init_aux: Callable[[jax.Array], Any] | None = None
    keywords: tuple[str, ...] = ()
    whole_batch: bool = False


AUX = 'objective'  # the key of the objective's parameters beside the parameters of the model


def divergence(logits: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Computes T² KL(teacher ‖ student) of logits [..., C] at temperature T -> float32 [...].

    The factor T² keeps the gradient roughly independent of T (Hinton et al. 2015, arXiv 1503.02531, section 2).
    """
    student = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    teacher = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    return temperature**2 * (jnp.exp(teacher) * (teacher - student)).sum(-1)


def _distill_logits(name: str) -> Callable[[Any, Any, Arrays, float], jax.Array]:
    """Makes `DistillLoss.elements`: the divergence of the outputs `name`."""
    return lambda student, teacher, batch, temperature: divergence(student[name], teacher[name], temperature)


def with_z_loss(objective: Objective, factor: float) -> Objective:
    """Adds the loss `z_loss`, the mean of (log Σ exp(logits))² over predicted positions, with the given factor.

    The reported mean does not include the factor. A factor of 0 adds no loss. Source: arXiv 2204.02311, section 5.
    """
    if not factor:
        return objective

    def losses(outputs: Any, batch: Arrays) -> Losses:
        normalizer = jax.nn.logsumexp(outputs['mlm_logits'].astype(jnp.float32), axis=-1)  # [B, P]
        weights = batch['masked_weights'].astype(jnp.float32)
        z_loss = ((jnp.square(normalizer) * weights).sum(), weights.sum())
        return {**objective.losses(outputs, batch), 'z_loss': z_loss}

    return dataclasses.replace(
        objective,
        losses=losses,
        weights=lambda batch: {**objective.weights(batch), 'z_loss': batch['masked_weights'].sum()},
        factors={**objective.factors, 'z_loss': factor},
    )


PRETRAINING = Objective(
    (*INPUTS, 'masked_positions'),
    pretraining_losses,
    lambda batch: {'mlm_loss': batch['masked_weights'].sum(), 'nsp_loss': batch['nsp_weights'].sum()},
    DistillLoss(_distill_logits('mlm_logits'), 'masked_weights'),
)

# The objective for packed rows. `nsp_labels` and `nsp_weights` then have a second axis for the sequences of a row.
PACKED_PRETRAINING = dataclasses.replace(
    PRETRAINING, inputs=(*PRETRAINING.inputs, 'sequence_ids', 'position_ids', 'cls_positions')
)


def classification_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes loss and accuracy of `logits` [B, C]. The int32 `labels` [B] are classes or indices of choices."""
    return classification_sums(outputs['logits'], batch['labels'], batch['weights'])


def build_class_weighted(class_weights: Sequence[float]) -> Objective:
    """Builds CLASSIFICATION with a weight per class: Σ w ℓ / Σ w, as in torch's CrossEntropyLoss(weight=w).

    w is the weight of a row's class, and ℓ the loss of the row. The accuracy does not use the class weights.
    Dividing all class weights by the smallest does not change the loss.
    """
    table = tuple(weight / min(class_weights) for weight in class_weights)

    def rows(batch: Arrays) -> jax.Array:
        return batch['weights'] * jnp.asarray(table, jnp.float32)[batch['labels']]  # [B]

    def losses(outputs: Any, batch: Arrays) -> Losses:
        weighted = classification_losses(outputs, {**batch, 'weights': rows(batch)})
        return classification_losses(outputs, batch) | {'loss': weighted['loss']}

    return dataclasses.replace(CLASSIFICATION, losses=losses, weights=lambda batch: {'loss': rows(batch).sum()})


def choice_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes `classification_losses` for questions with up to C endings. Endings without tokens are masked out."""
    return classification_losses({'logits': _mask_endings(outputs['logits'], batch)}, batch)


def _mask_endings(logits: jax.Array, batch: Arrays) -> jax.Array:
    absent = batch['attention_mask'][..., 0] == 0  # [B, C]
    return jnp.where(absent, NEGATIVE, logits)


def multi_label_losses(outputs: Arrays, batch: Arrays, positive: Sequence[float] | None = None) -> Losses:
    """Computes the binary cross entropy of `logits` [B, C] with `labels` [B, C], averaged over the C labels.

    The labels are float32, 0 or 1. The loss equals torch's BCEWithLogitsLoss, where `positive` [C] is its `pos_weight`.
    `accuracy` is the fraction of correct decisions at a probability of 0.5.
    """
    logits, labels, weights = outputs['logits'].astype(jnp.float32), batch['labels'], batch['weights']
    targets = labels if positive is None else labels * jnp.asarray(positive, jnp.float32)  # [B, C]
    row_losses = targets * jax.nn.softplus(-logits) + (1 - labels) * jax.nn.softplus(logits)  # [B, C]
    correct = ((logits > 0) == (labels > 0)).astype(jnp.float32)  # [B, C]
    total = weights.sum()
    return {
        'loss': ((row_losses.mean(-1) * weights).sum(), total),
        'accuracy': ((correct.mean(-1) * weights).sum(), total),
    }


def build_label_weighted(positive: Sequence[float]) -> Objective:
    """Builds MULTI_LABEL with weights for the positive labels; see `multi_label_losses`."""
    return dataclasses.replace(MULTI_LABEL, losses=functools.partial(multi_label_losses, positive=tuple(positive)))


def regression_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes the squared error between `logits` [B, 1] and float32 `labels` [B]."""
    error = jnp.square(outputs['logits'][:, 0] - batch['labels'])  # [B]
    return {'loss': ((error * batch['weights']).sum(), batch['weights'].sum())}


def token_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes loss and accuracy of `token_logits` [B, S, C] with int32 `token_labels` [B, S]."""
    return classification_sums(outputs['token_logits'], batch['token_labels'], batch['token_weights'])


def span_losses(outputs: Arrays, batch: Arrays) -> Losses:
    """Computes the accuracies of start and end, and the mean of their cross entropies.

    `start_logits` and `end_logits` are [B, S]; the labels `start` and `end` are int32 [B]. Unlike in transformers and
    google-research/bert, the softmax excludes padding, so the loss of a row does not depend on the padded length.
    """
    start_logits, end_logits = _span_logits(outputs, batch)
    first = classification_sums(start_logits, batch['start'], batch['weights'])
    last = classification_sums(end_logits, batch['end'], batch['weights'])
    (a, weight), (b, _) = first['loss'], last['loss']
    return {'loss': ((a + b) / 2, weight), 'start_accuracy': first['accuracy'], 'end_accuracy': last['accuracy']}


def _span_logits(outputs: Arrays, batch: Arrays) -> list[jax.Array]:
    """Returns the logits [B, S] of the first and of the last token, with padding masked."""
    padding = jnp.where(batch['attention_mask'] > 0, 0.0, NEGATIVE)  # [B, S]
    return [outputs[name] + padding for name in ('start_logits', 'end_logits')]


def row_weights(batch: Arrays) -> dict[str, jax.Array]:
    """Computes the weight of `loss` for a head with one loss per row."""
    return {'loss': batch['weights'].sum()}


def _distill_choices(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    return divergence(*(_mask_endings(x['logits'], batch) for x in (student, teacher)), temperature)  # [B]


def _distill_labels(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    """Computes the mean divergence [B] over the labels. A label is a binary decision with the logits x and 0."""
    pairs = (jnp.stack([x['logits'], jnp.zeros_like(x['logits'])], -1) for x in (student, teacher))
    return divergence(*pairs, temperature).mean(-1)


def _distill_scores(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    """Computes the squared differences [B] between the scores of the student and the teacher."""
    return jnp.square(student['logits'] - teacher['logits'])[:, 0]


def _distill_spans(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    """Computes the mean [B] of the divergences of the first and the last token. Padding is excluded."""
    pairs = zip(*(_span_logits(x, batch) for x in (student, teacher)), strict=True)
    return sum(divergence(*pair, temperature) for pair in pairs) / 2


CLASSIFICATION = Objective(INPUTS, classification_losses, row_weights, DistillLoss(_distill_logits('logits')))
CHOICES = Objective(INPUTS, choice_losses, row_weights, DistillLoss(_distill_choices))
MULTI_LABEL = Objective(INPUTS, multi_label_losses, row_weights, DistillLoss(_distill_labels))
REGRESSION = Objective(INPUTS, regression_losses, row_weights, DistillLoss(_distill_scores, uses_temperature=False))
SPANS = Objective(INPUTS, span_losses, row_weights, DistillLoss(_distill_spans))
TOKENS = Objective(
    INPUTS,
    token_losses,
    lambda batch: {'loss': batch['token_weights'].sum()},
    DistillLoss(_distill_logits('token_logits'), 'token_weights'),
)
