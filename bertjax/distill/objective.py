"""The objective of a distillation, and the choice of the teacher layers that the student imitates.

DistilBERT (arXiv 1910.01108) distills the outputs and the direction of the last hidden states. TinyBERT (arXiv
1909.10351) distills the outputs, the embeddings, all hidden states and all attention scores. A learned projection can
map the student's hidden states to the teacher's width.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.losses import AUX, Arrays, Objective
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.capture import HIDDEN, SCORES, apply_capturing
from bertjax.model.config import BertConfig
from bertjax.model.layers import Projection

HIDDEN_LOSSES = ('embeddings', 'hidden', 'attention', 'cosine')  # losses on the hidden states and attention scores
OUTPUT_LOSSES = ('soft', 'hard')  # losses on the outputs
# The name of an array in batches with augmented rows: float32 [B], 1 for original rows, which have a label, else 0.
HAS_LABEL = 'labelled'
PROJECTION = 'projection'  # the name of the projection in the auxiliary parameters of the objective


@dataclasses.dataclass(frozen=True)
class DistillSpec:
    """The losses of one stage of a distillation.

    Attributes:
      factors: {loss in HIDDEN_LOSSES or OUTPUT_LOSSES: its weight in the total loss}. A loss of weight 0 is not
        computed.
      temperature: The temperature of the soft targets.
      layers: For each block of the student, the index of the teacher block that it is compared with. Empty if the
        hidden states and attention scores of the blocks are not compared.
      projection: Whether a learned linear map projects the student's hidden states to the teacher's width. The
        embeddings and all blocks share the map, as in TinyBERT's code.
    """

    factors: Mapping[str, float]
    temperature: float
    layers: tuple[int, ...]
    projection: bool


def evenly_spaced_layers(count: int, num_layers: int) -> tuple[int, ...]:
    """Returns the indices of `count` evenly spaced blocks, including the first and the last of `num_layers` blocks.

    For 6 of 12 blocks the result is 0, 2, 4, 7, 9 and 11. DistilBERT is initialized with these blocks
    (huggingface/transformers, distillation/scripts/extract.py). For `count` = 1 the result is block 0.
    """
    last = num_layers - 1
    return tuple((2 * i * last + count - 1) // (2 * (count - 1)) if count > 1 else 0 for i in range(count))


def uniform_layers(count: int, num_layers: int) -> tuple[int, ...]:
    """Divides `num_layers` blocks into `count` parts of about equal size, and returns the last block of each part.

    For 4 of 12 blocks the result is 2, 5, 8 and 11 (TinyBERT, section 4.1).
    """
    return tuple((i + 1) * num_layers // count - 1 for i in range(count))


def distill_objective(base: Objective, spec: DistillSpec, teacher: nn.Module, student: BertConfig) -> Objective:
    """Builds the objective of a distillation.

    The objective has the losses whose factor is not 0, each as (sum, weight). Unless stated otherwise, the sum is over
    the real tokens (not padding), and the weight is their number:
      soft_loss: See `losses.DistillLoss`, at the temperature of the spec.
      The losses of `base` (factor `hard`), over rows with a label. The `loss` of `base` is renamed to label_loss.
      embeddings_loss: The squared distance from the teacher's embeddings, averaged over the width.
      hidden_loss: The squared distance from the teacher's hidden states, averaged over the width and summed over the
        student's blocks.
      attention_loss: The squared distance from the teacher's scores Q Kᵀ / √d before mask and softmax, averaged over
        the heads. The sum is over the student's blocks, and over the pairs (query, key) in which the query attends to
        the key. The weight is the number of pairs, averaged over the blocks.
      cosine_loss: 1 - cos of the last hidden states.

    The original code differs in two points. TinyBERT's code also averages over padding, with scores of 0 for masked
    pairs. In pre-training, DistilBERT's code uses the soft targets of all tokens. bertjax uses only those of the masked
    positions, because it computes no other logits.

    Args:
      base: The objective of the student without a teacher.
      teacher: The module of the teacher, with the same inputs as `base`.
    """
    factors = {part: factor for part, factor in spec.factors.items() if factor}
    hidden_parts = [part for part in HIDDEN_LOSSES if part in factors]
    capture = tuple(name for name, parts in _CAPTURED_FOR.items() if parts & set(hidden_parts))
    projection, init_aux = None, None
    if spec.projection:
        width = (teacher.config.width,)
        projection = Projection(student, width, ('embed',), ('norm',), ('norm',), use_bias=True)
        init_aux = lambda key: {PROJECTION: projection.init(key, jnp.zeros((1, student.width)))['params']}  # noqa: E731

    def teacher_fn(params: Any, batch: Arrays) -> dict[str, Any]:
        inputs = [batch[name] for name in base.inputs]
        outputs, captured = apply_capturing(teacher, params, *inputs, capture=capture)
        # HIDDEN has the embeddings (0), then the output of each block. The cosine loss needs the last output (-1).
        states = jnp.array([0, *(layer + 1 for layer in spec.layers), -1])
        select = {SCORES: lambda x: x[jnp.array(spec.layers)], HIDDEN: lambda x: x[states]}
        hidden = {name: select[name](x) for name, x in captured.items()}
        return jax.lax.stop_gradient({**outputs, **hidden} if 'soft' in factors else hidden)

    def losses(outputs: Mapping[str, Any], batch: Arrays) -> dict[str, tuple[jax.Array, jax.Array]]:
        pairs, targets = {}, batch['teacher']
        if 'soft' in factors:
            weights = batch[base.distill_loss.weights]
            elements = base.distill_loss.elements(outputs, targets, batch, spec.temperature)
            pairs['soft_loss'] = (elements * weights).sum(), weights.sum()
        if 'hard' in factors:
            pairs |= {_rename(name): pair for name, pair in base.losses(outputs, _mask_augmented(batch)).items()}
        if capture:
            pairs |= _hidden_losses(hidden_parts, outputs, targets, batch, projection, student)
        return pairs

    def weights(batch: Arrays) -> dict[str, jax.Array]:
        by_loss = {'soft_loss': batch[base.distill_loss.weights].sum()} if 'soft' in factors else {}
        if 'hard' in factors:
            by_loss |= {_rename(name): weight for name, weight in base.weights(_mask_augmented(batch)).items()}
        pairs = _pairs(batch, student).mean(0).sum() if 'attention' in factors else None
        real = batch['attention_mask'].sum()
        return by_loss | {f'{part}_loss': pairs if part == 'attention' else real for part in hidden_parts}

    loss_factors = {f'{part}_loss': factor for part, factor in factors.items() if part != 'hard'}
    if 'hard' in factors:
        loss_factors |= dict.fromkeys(('label_loss', 'mlm_loss', 'nsp_loss'), factors['hard'])
    return dataclasses.replace(
        base,
        losses=losses,
        weights=weights,
        factors=loss_factors,
        capture=capture,
        teacher_fn=teacher_fn,
        init_aux=init_aux,
    )


# {captured activation: the losses that need it}.
_CAPTURED_FOR = {HIDDEN: {'embeddings', 'hidden', 'cosine'}, SCORES: {'attention'}}


def _rename(name: str) -> str:
    """Renames the `loss` of the base objective, because `loss` is the name of the total loss."""
    return 'label_loss' if name == 'loss' else name


def _mask_augmented(batch: Arrays) -> Arrays:
    """Returns the batch with weight 0 for augmented rows, which have no label."""
    if HAS_LABEL not in batch:
        return batch
    masked = {'weights': batch['weights'] * batch[HAS_LABEL]}
    if 'token_weights' in batch:
        masked['token_weights'] = batch['token_weights'] * batch[HAS_LABEL][:, None]
    return {**batch, **masked}


def _pairs(batch: Arrays, student: BertConfig) -> jax.Array:
    """Returns float32 [L, B, Q, S], 1 where token q attends to token s in a block, else 0.

    L is 1 if the student has no attention window. The attention mask of `batch` is [B, S], or [rows, C, S] with
    rows·C = B.
    """
    mask = batch['attention_mask']
    mask = mask.reshape(-1, mask.shape[-1])
    attention = AttentionMask(mask, batch.get('sequence_ids'), student.causal)
    windows = [0]
    if student.attention_window:
        windows = [0 if student.attends_globally(i) else student.attention_window for i in range(student.num_layers)]
    visible = [attention.replace(window=window).visible(mask.shape[1])[:, 0] for window in windows]  # [B, Q or 1, S]
    return jnp.stack([x & (mask[:, :, None] > 0) for x in visible]).astype(jnp.float32)


def _hidden_losses(
    parts: Sequence[str],
    outputs: Mapping[str, Any],
    targets: Mapping[str, jax.Array],
    batch: Arrays,
    projection: Projection | None,
    student: BertConfig,
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Computes the losses `parts`; see `distill_objective`.

    The student's hidden states are [L + 1, B, S, D] for L blocks. The teacher's are [len(layers) + 2, B, S, D'].
    """
    mask = batch['attention_mask']
    real = mask.reshape(-1, mask.shape[-1]).astype(jnp.float32)  # [B, S]
    pairs_by_loss = {}
    if 'attention' in parts:
        pairs = _pairs(batch, student)
        distance = jnp.square(outputs[SCORES] - targets[SCORES]).mean(2)  # [L, B, Q, S]
        distance = distance if len(pairs) > 1 else distance.sum(0, keepdims=True)
        pairs_by_loss['attention_loss'] = (distance * pairs).sum(), pairs.mean(0).sum()
    if HIDDEN not in targets:
        return pairs_by_loss
    states = outputs[HIDDEN]
    if projection is not None:
        states = projection.apply({'params': outputs[AUX][PROJECTION]}, states)
    states, teacher_states = states.astype(jnp.float32), targets[HIDDEN].astype(jnp.float32)
    distance = lambda x, y: jnp.square(x - y).mean(-1).sum(0)  # noqa: E731  [N, B, S, D'] -> [B, S]
    elements = {
        'embeddings': lambda: distance(states[:1], teacher_states[:1]),
        'hidden': lambda: distance(states[1:], teacher_states[1:-1]),
        'cosine': lambda: 1.0 - _cosine(states[-1], teacher_states[-1]),
    }
    return pairs_by_loss | {
        f'{part}_loss': ((elements[part]() * real).sum(), real.sum()) for part in parts if part in elements
    }


def _cosine(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the cosine similarity, [..., D] -> [...]. It is 0 if a vector is 0."""
    norms = jnp.square(x).sum(-1) * jnp.square(y).sum(-1)
    return (x * y).sum(-1) * jax.lax.rsqrt(jnp.maximum(norms, 1e-30))
