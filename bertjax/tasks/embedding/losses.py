"""Losses of embeddings and of lists of scores.

Similarity is the cosine of the angle between two vectors. The rows of a batch are groups of C texts. The batch array
`text_ids`, int32 [B, C], has equal entries for equal texts, and 0 for an absent text.

Embeddings, rerankers and late interaction share the losses of lists, `listwise_…`. A list has the scores of M texts: a
query's positive, which is first, and M - 1 negatives. The arrays of B lists are [B, M]. `present` is False for a
missing negative.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.data.features import INPUTS
from bertjax.losses import Arrays, Objective, divergence, row_weights
from bertjax.model.layers import NEGATIVE

TEXT_IDS = 'text_ids'


@dataclasses.dataclass(frozen=True)
class RowLoss:
    """A loss of a task that compares texts.

    Attributes:
      rows: the function (vectors or scores from the model, batch, **options) -> the losses of B rows, float32 [B].
      forms: the forms of the records that the loss accepts, keys of files.FORMS.
      options: the options of the task that the loss uses.
      needs_negatives: whether the loss of a record without negatives is always 0.
      score_range: the allowed range of a label divided by config.task.max_score; None for no limit.
    """

    rows: Callable[..., jax.Array]
    forms: tuple[str, ...]
    options: tuple[str, ...] = ()
    needs_negatives: bool = False
    score_range: tuple[float, float] | None = None


def make_objective(
    rows: Callable[[jax.Array, Arrays], jax.Array], output: str, inputs: Sequence[str] = INPUTS, **options: Any
) -> Objective:
    """Returns the objective with the loss `rows`: (the model's `output`, batch) -> the losses of the rows, float32 [B].

    For `inputs` and `options`, see Objective.
    """

    def losses(outputs: Any, batch: Arrays) -> dict[str, Any]:
        return {'loss': ((rows(outputs[output], batch) * batch['weights']).sum(), batch['weights'].sum())}

    return Objective((*inputs,), losses, row_weights, **options)


def mean_of(x: jax.Array, present: jax.Array) -> jax.Array:
    """Returns the mean [B] of the present elements in each row of x [B, M], or 0 for a row without any."""
    return jnp.where(present, x, 0.0).sum(-1) / jnp.maximum(present.sum(-1), 1)


def listwise_softmax(scores: jax.Array, present: jax.Array, teacher: jax.Array | None = None) -> jax.Array:
    """Computes the cross entropy [B] of the positive among the texts of its list (ListNet with one relevant text)."""
    del teacher
    return jax.nn.logsumexp(jnp.where(present, scores, NEGATIVE), axis=-1) - scores[:, 0]


def listwise_divergence(scores: jax.Array, present: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes KL(teacher ‖ student) [B] of the softmax over the texts of each list (arXiv 2112.01488, section 3.2)."""
    return divergence(*(jnp.where(present, x, NEGATIVE) for x in (scores, teacher)), temperature=1.0)


def listwise_margin_mse(scores: jax.Array, present: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes the mean squared difference [B] between the student's and the teacher's margins (arXiv 2010.02666).

    A margin is the score of the positive minus the score of a negative.
    """
    margins, expected = (x[:, :1] - x[:, 1:] for x in (scores, teacher))
    return mean_of(jnp.square(margins - expected), present[:, 1:])


def normalize(x: jax.Array) -> jax.Array:
    """Scales vectors [..., D] to length 1. The zero vector of an absent text stays zero, with a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))


def _pair_similarity(x: jax.Array) -> jax.Array:
    return (x[:, 0] * x[:, 1]).sum(-1)


def info_nce(
    x: jax.Array, batch: Arrays, *, scale: float = 20.0, symmetric: bool = False, false_negative_margin: float = 0.0
) -> jax.Array:
    """Computes the cross entropy of each anchor's positive among the texts of all rows (arXiv 1807.03748, 1705.00652).

    A text is not a negative of an anchor if it equals the anchor, or the positive of any row with an equal anchor.

    Args:
      x: float32 [B, C, D], the unit vectors of the anchor, the positive and C - 2 hard negatives of each row.
      batch: `text_ids`, int32 [B, C].
      scale: The factor of the similarities, an inverse temperature.
      symmetric: Whether to average this cross entropy with that of each positive's anchor among all anchors (CLIP,
        arXiv 2103.00020).
      false_negative_margin: If > 0, texts whose similarity to the anchor exceeds the positive's by more than this
        margin are not negatives either (arXiv 2506.05176, equation 2).
    """
    texts = x[:, 1:].swapaxes(0, 1).reshape(-1, x.shape[-1])  # positives first
    similarity = jnp.einsum('id,jd->ij', x[:, 0], texts, precision='highest')  # [B, (C - 1)·B]
    return in_batch_cross_entropy(
        similarity, batch[TEXT_IDS], scale=scale, symmetric=symmetric, false_negative_margin=false_negative_margin
    )


def in_batch_cross_entropy(
    similarity: jax.Array, ids: jax.Array, *, scale: float, symmetric: bool = False, false_negative_margin: float = 0.0
) -> jax.Array:
    """Computes `info_nce` [B] from text ids [B, C] and similarities [B, (C - 1)·B]. The B positives come first."""
    B, text_ids = len(ids), ids[:, 1:].T.reshape(-1)
    same_anchor, is_positive = ids[:, :1] == ids[:, 0], ids[:, 1:2] == text_ids  # [B, B] and [B, (C - 1)·B]
    first = same_anchor.argmax(1)  # [B], the first row with an equal anchor
    known = jnp.zeros_like(is_positive).at[first].max(is_positive)[first]
    same = (text_ids == ids[:, :1]) | known

    def entropy(similarity: jax.Array, excluded: jax.Array) -> jax.Array:
        """Computes the cross entropy [B] of column i in row i of `similarity` [B, M], without `excluded` columns."""
        own = jnp.eye(*similarity.shape, dtype=bool)
        positive = jnp.where(own, similarity, 0.0).sum(-1)
        if false_negative_margin:
            excluded |= similarity > positive[:, None] + false_negative_margin
        logits = jnp.where(excluded & ~own, -jnp.inf, scale * similarity)
        return jax.nn.logsumexp(logits, axis=-1) - scale * positive

    forward = entropy(similarity, same | (text_ids == 0))
    if not symmetric:
        return forward
    return (forward + entropy(similarity[:, :B].T, same[:, :B].T | (ids[:, 0] == 0))) / 2


def cosent(x: jax.Array, batch: Arrays, *, scale: float = 20.0) -> jax.Array:
    """Computes log(1 + Σ exp(scale · (s_j - s_i))) over the row pairs i, j with label_i > label_j.

    Here s_i is the similarity of row i (CoSENT, Su 2022, kexue.fm/archives/8847). The unit vectors x are float32
    [B, 2, D]. Every element of the result [B] is the loss of the batch.
    """
    similarity, scores, real = scale * _pair_similarity(x), batch['labels'], batch['weights'] > 0
    wrong = (scores[:, None] > scores) & real[:, None] & real
    differences = jnp.where(wrong, similarity - similarity[:, None], -jnp.inf)
    loss = jax.nn.logsumexp(jnp.append(differences.reshape(-1), 0.0))
    return jnp.broadcast_to(loss, scores.shape)


def cosine(x: jax.Array, batch: Arrays) -> jax.Array:
    """Computes the squared error [B] of the similarity of each pair in x [B, 2, D]. The `labels` [B] are in [-1, 1]."""
    return jnp.square(_pair_similarity(x) - batch['labels'])


def margin_mse(x: jax.Array, batch: Arrays, *, scale: float = 20.0) -> jax.Array:
    """Computes `listwise_margin_mse` [B] between similarities multiplied by `scale` and a teacher's scores.

    The unit vectors x are float32 [B, C, D], as in `info_nce`, and the teacher's scores are `labels` [B, C - 1].
    """
    similarity = scale * jnp.einsum('bd,bcd->bc', x[:, 0], x[:, 1:], precision='highest')
    return listwise_margin_mse(similarity, batch[TEXT_IDS][:, 1:] > 0, batch['labels'])


# The first loss that accepts a form is the default for this form.
LOSSES = {
    'margin_mse': RowLoss(margin_mse, ('distilled',), ('scale',), needs_negatives=True),
    'info_nce': RowLoss(info_nce, ('pairs', 'texts', 'distilled'), ('scale', 'symmetric', 'false_negative_margin')),
    'cosent': RowLoss(cosent, ('scored',), ('scale',)),
    'cosine': RowLoss(cosine, ('scored',), score_range=(-1, 1)),
}


def build_objective(loss: str, dims: Sequence[int] = (), **options: Any) -> Objective:
    """Builds the objective of a loss of LOSSES on the model's `embeddings` [B, C, D].

    The loss is the sum of the losses on the first `width` dimensions, for each width in `dims` (Matryoshka, arXiv
    2205.13147). With (), the loss uses all dimensions.
    """
    rows = functools.partial(LOSSES[loss].rows, **options)

    def losses(outputs: Any, batch: Arrays) -> dict[str, Any]:
        x, weights = outputs['embeddings'].astype(jnp.float32), batch['weights']
        total = sum((rows(normalize(x[..., :width]), batch) * weights).sum() for width in dims or (x.shape[-1],))
        return {'loss': (total, weights.sum())}

    return Objective(INPUTS, losses, row_weights, whole_batch=True)
