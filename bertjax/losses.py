"""Losses and accuracies as sums and weights: the division happens once, globally, at the end."""

from collections.abc import Mapping

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
    # A comparison instead of a gather: with C split over devices nothing has to be collected.
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
