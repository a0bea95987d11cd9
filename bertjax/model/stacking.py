"""The two layouts of the blocks' parameters: one stacked tree `layers`, or trees `layers_0` … `layers_{L-1}`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

STACKED = 'layers'


def unstack_layers(params: dict) -> dict:
    """Splits the tree encoder/layers into encoder/layers_0 …, and drops the axis name `layers` of `nn.Partitioned`."""
    is_box = lambda x: isinstance(x, nn.Partitioned)  # noqa: E731

    def select(i: int, x: Any) -> Any:
        return x.replace(value=x.value[i], names=x.names[1:]) if is_box(x) else x[i]

    encoder = dict(params['encoder'])
    stack = encoder.pop(STACKED)
    for i in range(jax.tree.leaves(stack)[0].shape[0]):
        encoder[f'{STACKED}_{i}'] = jax.tree.map(functools.partial(select, i), stack, is_leaf=is_box)
    return {**params, 'encoder': encoder}


def stack_layers(params: dict) -> dict:
    """Inverts `unstack_layers`, for trees without boxes."""
    encoder = dict(params['encoder'])
    count = sum(name.startswith(f'{STACKED}_') for name in encoder)
    layers = [encoder.pop(f'{STACKED}_{i}') for i in range(count)]
    # NumPy arrays stay NumPy arrays, so that converting a checkpoint to another format needs no device.
    encoder[STACKED] = jax.tree.map(lambda *x: (np if isinstance(x[0], np.ndarray) else jnp).stack(x), *layers)
    return {**params, 'encoder': encoder}


def init_params(model: nn.Module, key: jax.Array) -> dict:
    """Initializes the boxed parameters of a model that has a `config`, an `encoder` and `smallest_inputs`.

    The layers are initialized as a stack. If the config unrolls the layers, the stack is then split, so both layouts
    have the same initial values.
    """
    params = _init_function(model.clone(config=dataclasses.replace(model.config, scan_layers=True)))(key)
    return params if model.config.scan_layers else unstack_layers(params)


@functools.cache
def _init_function(model: nn.Module) -> Callable[[jax.Array], dict]:
    """Returns a jitted function, so that equal models are traced only once in a process."""

    def init(key: jax.Array) -> dict:
        inputs = [jnp.zeros(shape, jnp.int32) for shape in model.smallest_inputs]
        return model.init(key, *inputs)['params']

    return jax.jit(init, inline=True)
