"""What a model computes on its way, for whoever asks: hidden states, attention scores and probabilities of every layer.

Each is a Linen collection that a module fills only where the caller makes it mutable, as `apply_capturing` does: a call
that asks for nothing compiles to the same program as if there were no such thing.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.stacking import STACKED

HIDDEN, SCORES, PROBABILITIES = 'hidden', 'scores', 'probabilities'
CAPTURES = (HIDDEN, SCORES, PROBABILITIES)
_NAME = 'kept'


def is_captured(module: nn.Module, *names: str) -> bool:
    """Whether the caller asks for one of these."""
    return not module.is_initializing() and any(map(module.is_mutable_collection, names))


def capture_value(module: nn.Module, name: str, value: jax.Array) -> None:
    """Hands out what is `is_captured`, once a call."""
    module.put_variable(name, _NAME, value)


def apply_capturing(
    model: nn.Module, params: Any, *inputs: jax.Array, capture: Collection[str], **options: Any
) -> tuple[Any, dict[str, jax.Array]]:
    """The model's outputs, and what it computed on its way; to be used within jit.

    Args:
      model: BertForPreTraining or one of heads.py.
      params: of it.
      *inputs: its arguments.
      capture: some of CAPTURES; nothing else is computed.
      **options: of `model.apply` and of the model (`dropout`).

    Returns:
      The outputs, which are those without a capture; and by name
        hidden: [L + 1, B, S, D] in the dtype of computation, the embeddings first, the encoder's result last;
        scores: float32 [L, B, H, S, S], queries before keys: Q Kᵀ / √K before mask and softmax;
        probabilities: float32 [L, B, H, S, S]: the softmax over the keys that the mask shows, before dropout.
      B is B·C where there are C endings (heads.BertForMultipleChoice).
    """
    outputs, kept = model.apply({'params': params}, *inputs, mutable=list(capture), **options)
    return outputs, {name: _of_layers(kept[name]['encoder']) for name in capture}


def _of_layers(encoder: Any) -> jax.Array:
    """The values of all layers, in order, of a collection of either shape of the stack (model/stacking.py)."""
    if _NAME in encoder:  # kept by the encoder itself
        return encoder[_NAME]
    layers = [encoder[STACKED]] if STACKED in encoder else [encoder[f'{STACKED}_{i}'] for i in range(len(encoder))]
    values = [layer['attention'][_NAME] for layer in layers]
    return values[0] if STACKED in encoder else jnp.stack(values)
