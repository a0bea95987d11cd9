"""The two shapes of a stack of blocks: one stacked tree `layers`, or as many trees `layers_0` … `layers_{L-1}`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

STACKED = 'layers'


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.Partitioned)


def _pick(x: Any, i: int) -> Any:
    return x.replace(value=x.value[i], names=x.names[1:]) if _is_box(x) else x[i]


def unstack_layers(params: dict) -> dict:
    """`params` with encoder/layers split into encoder/layers_0 …; boxes lose the axis name `layers`."""
    encoder = dict(params['encoder'])
    stack = encoder.pop(STACKED)
    first = jax.tree.leaves(nn.unbox(stack))[0]
    for i in range(first.shape[0]):
        encoder[f'{STACKED}_{i}'] = jax.tree.map(lambda x, i=i: _pick(x, i), stack, is_leaf=_is_box)
    return {**params, 'encoder': encoder}


def stack_layers(params: dict) -> dict:
    """The inverse of `unstack_layers`, for trees without boxes."""
    encoder = dict(params['encoder'])
    count = sum(name.startswith(f'{STACKED}_') for name in encoder)
    layers = [encoder.pop(f'{STACKED}_{i}') for i in range(count)]
    # numpy stays numpy: a checkpoint on its way to another format need not pass through a device.
    encoder[STACKED] = jax.tree.map(lambda *x: (np if isinstance(x[0], np.ndarray) else jnp).stack(x), *layers)
    return {**params, 'encoder': encoder}


def init_params(model: nn.Module, key: jax.Array, *inputs: jax.Array) -> dict:
    """Boxed initial parameters of a model that has a `config` and an `encoder`.

    Draws stacked layers, and splits them where the config unrolls: both forms start from the same numbers.

    Args:
      model: BertForPreTraining or one of heads.py.
      key: of the draw.
      *inputs: what the model takes, without `dropout`; zeros of a small shape will do.
    """
    scanned = model.clone(config=dataclasses.replace(model.config, scan_layers=True))
    params = scanned.init(key, *inputs)['params']
    return params if model.config.scan_layers else unstack_layers(params)
