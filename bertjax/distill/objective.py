"""What a student learns from its teacher: the objective of a distillation, and the layers of the teacher it follows.

DistilBERT (arXiv 1910.01108) learns the teacher's outputs and the direction of its last hidden states; TinyBERT (arXiv
1909.10351) what every layer computes: embeddings, hidden states through a learned projection, attention scores.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.losses import AUX, Objective
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.capture import HIDDEN, SCORES, apply_capturing
from bertjax.model.config import BertConfig
from bertjax.model.layers import Projection

Batch = Mapping[str, jax.Array]
HIDDEN_LOSSES = ('embeddings', 'hidden', 'attention', 'cosine')  # of what a model computes on its way
OUTPUT_LOSSES = ('soft', 'hard')  # of its outputs
HAS_OWN_LABEL = 'labelled'  # in a batch with rows of an augmentation: 1 for those whose label is their own, float32 [B]
PROJECTION = 'projection'  # in the objective's own parameters


@dataclasses.dataclass(frozen=True)
class DistillSpec:
    """What is taught in a stretch of training.

    Attributes:
      factors: how much each part of INNER and OUTER counts in what is minimised; those with 0 are not computed.
      temperature: of the soft targets.
      layers: of each of the student's blocks, the number of the teacher's that it follows.
      projection: whether the student's hidden states are compared through a learned linear map to the teacher's width:
        one for embeddings and all blocks, as in TinyBERT's code.
    """

    factors: Mapping[str, float]
    temperature: float
    layers: tuple[int, ...]
    projection: bool

    def only(self, parts: Sequence[str]) -> 'DistillSpec':
        """The same with these parts alone."""
        return dataclasses.replace(self, factors={part: self.factors[part] for part in parts})


def evenly_spaced_layers(count: int, of: int) -> tuple[int, ...]:
    """`count` of the numbers below `of`, evenly spread, the first and the last among them: of 12 six are 0, 2, 4, 7, 9
    and 11, those that DistilBERT was begun from (huggingface/transformers, distillation/scripts/extract.py)."""
    return tuple((2 * i * (of - 1) + count - 1) // (2 * (count - 1)) if count > 1 else 0 for i in range(count))


def uniform_layers(count: int, of: int) -> tuple[int, ...]:
    """The last block of each of `count` equal stretches of a teacher of `of` blocks (TinyBERT, section 4.1): of 12 four
    are 2, 5, 8 and 11."""
    return tuple((i + 1) * of // count - 1 for i in range(count))


def distill_objective(base: Objective, lesson: DistillSpec, teacher: nn.Module, student: BertConfig) -> Objective:
    """The objective of a distillation.

    Its losses, as (sum, weight), each computed only where its factor is not 0:
      soft_loss: see `losses.DistillLoss`, at the lesson's temperature;
      those of `base` (factor `hard`), where its `loss` is called label_loss, over rows with a label of their own;
      embeddings_loss, hidden_loss: squared distance from the teacher's states, the mean over the width, of `hidden`
        the sum over the student's blocks; over real tokens;
      attention_loss: squared distance of the scores Q Kᵀ / √K before mask and softmax, the mean over the heads and the
        sum over the student's blocks; over pairs of tokens that see each other;
      cosine_loss: 1 - cos of the last hidden states; over real tokens.

    Where TinyBERT's code takes means over padding too, with scores of 0 in the place of masked ones, padding weighs
    nothing here; DistilBERT's takes the soft targets of all tokens of a pre-training batch, and here those of the
    masked positions are taken, the only ones whose logits are computed.

    Args:
      base: of the student without a teacher.
      lesson: what is taught.
      teacher: takes the inputs of `base`.
      student: of the encoder that learns.
    """
    factors = {part: factor for part, factor in lesson.factors.items() if factor}
    inner = [part for part in HIDDEN_LOSSES if part in factors]
    capture = tuple(name for name, parts in _NEEDED.items() if parts & set(inner))
    projection = _projection(student, teacher.config.width) if lesson.projection else None

    def teacher_fn(params: Any, batch: Batch) -> dict[str, Any]:
        inputs = [batch[name] for name in base.inputs]
        outputs, kept = apply_capturing(teacher, params, *inputs, capture=capture)
        chosen = {SCORES: lambda x: x[jnp.array(lesson.layers)], HIDDEN: lambda x: x[_states(lesson.layers)]}
        said = {name: chosen[name](x) for name, x in kept.items()}
        return jax.lax.stop_gradient({**outputs, **said} if 'soft' in factors else said)

    def losses(outputs: Mapping[str, Any], batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        found, told = {}, batch['teacher']
        if 'soft' in factors:
            weights = batch[base.distill_loss.weights]
            each = base.distill_loss.elements(outputs, told, batch, lesson.temperature)
            found['soft_loss'] = (each * weights).sum(), weights.sum()
        if 'hard' in factors:
            found |= {_called(name): pair for name, pair in base.losses(outputs, _own_labels(batch)).items()}
        if capture:
            found |= _inner_losses(inner, outputs, told, batch, projection, student.causal)
        return found

    def weights(batch: Batch) -> dict[str, jax.Array]:
        found = {'soft_loss': batch[base.distill_loss.weights].sum()} if 'soft' in factors else {}
        if 'hard' in factors:
            found |= {_called(name): weight for name, weight in base.weights(_own_labels(batch)).items()}
        pairs = _pairs(batch, student.causal).sum() if 'attention' in factors else None
        real = batch['attention_mask'].sum()
        return found | {f'{part}_loss': pairs if part == 'attention' else real for part in inner}

    counted = {f'{part}_loss': factor for part, factor in factors.items() if part != 'hard'}
    if 'hard' in factors:
        counted |= dict.fromkeys(('label_loss', 'mlm_loss', 'nsp_loss'), factors['hard'])
    return dataclasses.replace(
        base,
        losses=losses,
        weights=weights,
        factors=counted,
        capture=capture,
        teacher_fn=teacher_fn,
        init_aux=None if projection is None else _init_own(projection, student),
    )


# What a model has to tell for which part.
_NEEDED = {HIDDEN: {'embeddings', 'hidden', 'cosine'}, SCORES: {'attention'}}


def _called(name: str) -> str:
    """A loss of the objective without a teacher, beside the others."""
    return 'label_loss' if name == 'loss' else name


def _states(layers: tuple[int, ...]) -> jax.Array:
    """Of the teacher's hidden states: the embeddings, the outputs of these blocks, and the last."""
    return jnp.array([0, *(layer + 1 for layer in layers), -1])


def _own_labels(batch: Batch) -> Batch:
    """The batch, in which a row without a label of its own weighs nothing."""
    if HAS_OWN_LABEL not in batch:
        return batch
    own = {'weights': batch['weights'] * batch[HAS_OWN_LABEL]}
    if 'token_weights' in batch:
        own['token_weights'] = batch['token_weights'] * batch[HAS_OWN_LABEL][:, None]
    return {**batch, **own}


def _projection(student: BertConfig, width: int) -> Projection:
    return Projection(student, (width,), ('embed',), ('norm',), ('norm',))


def _init_own(projection: Projection, student: BertConfig) -> Callable[[jax.Array], Any]:
    return lambda key: {PROJECTION: projection.init(key, jnp.zeros((1, student.width)))['params']}


def _pairs(batch: Batch, causal: bool) -> jax.Array:
    """Which tokens of a batch see which, float32 [B, Q, S]; its rows are [B, S], packed or not, or [B, C, S]."""
    mask = batch['attention_mask']
    mask = mask.reshape(-1, mask.shape[-1])
    visible = AttentionMask(mask, batch.get('sequence_ids'), causal).visible(mask.shape[1])[:, 0]  # [B, Q or 1, S]
    return (visible & (mask[:, :, None] > 0)).astype(jnp.float32)


def _inner_losses(
    parts: Sequence[str],
    outputs: Mapping[str, Any],
    told: Mapping[str, jax.Array],
    batch: Batch,
    projection: Projection | None,
    causal: bool,
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """See `distill_objective`; hidden states are [L + 1, B, S, D] of the student, [L + 2, B, S, D'] of the teacher."""
    mask = batch['attention_mask']
    real = mask.reshape(-1, mask.shape[-1]).astype(jnp.float32)  # [B, S]
    found = {}
    if 'attention' in parts:
        pairs = _pairs(batch, causal)
        distance = jnp.square(outputs[SCORES] - told[SCORES]).mean(2).sum(0)  # [B, Q, S]
        found['attention_loss'] = (distance * pairs).sum(), pairs.sum()
    if HIDDEN not in told:
        return found
    states = outputs[HIDDEN]
    if projection is not None:
        states = projection.apply({'params': outputs[AUX][PROJECTION]}, states)
    states, theirs = states.astype(jnp.float32), told[HIDDEN].astype(jnp.float32)
    distance = lambda ours, theirs: jnp.square(ours - theirs).mean(-1).sum(0)  # noqa: E731  [N, B, S, D'] -> [B, S]
    each = {
        'embeddings': lambda: distance(states[:1], theirs[:1]),
        'hidden': lambda: distance(states[1:], theirs[1:-1]),
        'cosine': lambda: 1.0 - _cosine(states[-1], theirs[-1]),
    }
    return found | {f'{part}_loss': ((each[part]() * real).sum(), real.sum()) for part in parts if part in each}


def _cosine(x: jax.Array, y: jax.Array) -> jax.Array:
    """[..., D] -> [...]; 0 where one of the two is 0."""
    norms = jnp.square(x).sum(-1) * jnp.square(y).sum(-1)
    return (x * y).sum(-1) * jax.lax.rsqrt(jnp.maximum(norms, 1e-30))
