"""Captures intermediate values of every layer: hidden states, attention scores, attention probabilities.

Each kind of value is a Linen collection. A module fills a collection only if the caller makes it mutable, as
`apply_capturing` does. A call that captures nothing compiles to the same program as a model without capture.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.stacking import STACKED

HIDDEN, SCORES, PROBABILITIES = 'hidden', 'scores', 'probabilities'
CAPTURES = (HIDDEN, SCORES, PROBABILITIES)
VALUE = 'value'  # the key of a captured value in its collection


def is_captured(module: nn.Module, *names: str) -> bool:
    """Returns whether the caller captures at least one of these collections."""
    return not module.is_initializing() and any(map(module.is_mutable_collection, names))


def apply_capturing(
    model: nn.Module, params: Any, *inputs: jax.Array, capture: Collection[str], **options: Any
) -> tuple[Any, dict[str, jax.Array]]:
    """Applies a model, and captures the kinds of values in `capture`, a subset of CAPTURES. Call this within jit.

    Returns:
      The outputs, as without capture, and a dict with an entry for each captured name:
        hidden: [L + 1, B, S, D] in the dtype of computation, from the embeddings to the last hidden states.
        scores: float32 [L, B, H, S, S], query keyᵀ / √K before mask and softmax. The query axis precedes the key axis.
        probabilities: float32 [L, B, H, S, S], the softmax over the visible keys, before dropout.
      For heads.BertForMultipleChoice with C endings, the size of the axis B is B·C.
    """
    outputs, collections = model.apply({'params': params}, *inputs, mutable=list(capture), **options)
    return outputs, {name: _stack_values(collections[name]['encoder']) for name in capture}


def _stack_values(encoder: Any) -> jax.Array:
    """Stacks the values of all layers in order, for both layouts of the layers (model/stacking.py)."""
    if VALUE in encoder:  # the encoder itself captured all layers
        return encoder[VALUE]
    if STACKED in encoder:
        return encoder[STACKED]['attention'][VALUE]
    return jnp.stack([encoder[f'{STACKED}_{i}']['attention'][VALUE] for i in range(len(encoder))])
