"""Losses of lists of scores. A list has M scores: of a query's positive, and of its M - 1 negatives.

Embeddings, rerankers and late interaction differ in their scores, but share these losses. All arrays are [B, M], the
positive first; `present` is False for a negative that a query lacks.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.data.features import INPUTS
from bertjax.losses import Objective


@dataclasses.dataclass(frozen=True)
class RowLoss:
    """A loss of a task that compares texts.

    Attributes:
      rows: the function (vectors or scores from the model, batch, **options) -> the losses of B rows, float32 [B].
      forms: the forms of the records that the loss accepts, keys of files.FORMS.
      options: the options of the task that the loss uses.
      needs_negatives: whether each record must have a negative.
      score_range: the allowed range of a label divided by config.task.max_score; None for no limit.
    """

    rows: Callable[..., jax.Array]
    forms: tuple[str, ...]
    options: tuple[str, ...] = ()
    needs_negatives: bool = False
    score_range: tuple[float, float] | None = None


def make_objective(
    total: Callable[[Any, Mapping[str, jax.Array]], jax.Array], inputs: Sequence[str] = INPUTS, **options: Any
) -> Objective:
    """Returns an objective with a single loss.

    Args:
      total: The function (outputs, batch) -> the sum of the losses of the rows, each multiplied by its weight.
      inputs, **options: See Objective.
    """
    weights = lambda batch: {'loss': batch['weights'].sum()}  # noqa: E731
    losses = lambda outputs, batch: {'loss': (total(outputs, batch), batch['weights'].sum())}  # noqa: E731
    return Objective((*inputs,), losses, weights, **options)


def mean_of(x: jax.Array, present: jax.Array) -> jax.Array:
    """Averages [B, M] over the elements that are present -> [B]. The average of no elements is 0."""
    return jnp.where(present, x, 0.0).sum(-1) / jnp.maximum(present.sum(-1), 1)


def listwise_softmax(scores: jax.Array, present: jax.Array, teacher: jax.Array | None = None) -> jax.Array:
    """Computes the cross entropy [B] of the positive among the texts of its list (ListNet with one relevant text)."""
    del teacher
    return jax.nn.logsumexp(jnp.where(present, scores, -1e9), axis=-1) - scores[:, 0]


def divergence(scores: jax.Array, present: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes KL(teacher ‖ student) [B] of the softmax over the texts of each list (arXiv 2112.01488, section 3.2)."""
    student, teacher = (jax.nn.log_softmax(jnp.where(present, x, -1e9), axis=-1) for x in (scores, teacher))
    return (jnp.exp(teacher) * (teacher - student)).sum(-1)


def margin_mse(scores: jax.Array, present: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes the mean squared difference [B] between the student's and the teacher's margins (arXiv 2010.02666).

    A margin is the score of the positive minus the score of a negative.
    """
    margins, expected = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return mean_of(jnp.square(margins - expected), present[:, 1:])
