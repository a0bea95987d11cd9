"""Flattens parameter trees to {path: array} with stacked layers, the form that names.py reads."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict

from bertjax.model.config import BertConfig
from bertjax.model.stacking import STACKED, init_params, stack_layers


def flat_paths(tree: Mapping) -> dict[str, Any]:
    """Returns the leaves of a tree by path, for example 'encoder/embeddings/norm/scale'."""
    return flatten_dict(tree, sep='/')


def params_digest(params: Mapping) -> str:
    """Returns the sha256 (hex) of the paths, dtypes, shapes and values of all parameters."""
    digest = hashlib.sha256()
    for path, x in sorted(flat_paths(params).items()):
        digest.update(f'{path} {x.dtype} {x.shape}\n'.encode())
        digest.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8))  # Unlike tobytes(), a view does not copy.
    return digest.hexdigest()


class HostParams:
    """Parameters by path with stacked layers. `get` converts one array at a time, to avoid a second copy of the model.

    Args:
      params: The parameters, on devices or on the host.
      config: The config of the model. `scan_layers` says whether the layers of `params` are stacked.
    """

    def __init__(self, params: Mapping, config: BertConfig):
        self._flat, self._stacked = flat_paths(params), config.scan_layers
        stacked = params if config.scan_layers else jax.eval_shape(stack_layers, dict(params))
        self.shapes: dict[str, tuple[int, ...]] = {path: x.shape for path, x in flat_paths(stacked).items()}

    def get(self, path: str, layer: int | None = None) -> np.ndarray:
        """Returns the array of a path, or only its part of block `layer`, in float32 on the host."""
        if layer is None or self._stacked:
            x = np.asarray(self._flat[path])
            return np.asarray(x if layer is None else x[layer], np.float32)
        prefix = f'encoder/{STACKED}'
        return np.asarray(self._flat[f'{prefix}_{layer}{path.removeprefix(prefix)}'], np.float32)


def init_stacked(model: nn.Module, key: jax.Array) -> dict[str, jax.Array]:
    """Returns initial parameters of a model by path, with stacked layers."""
    model = model.clone(config=dataclasses.replace(model.config, scan_layers=True))
    return flat_paths(nn.unbox(init_params(model, key)))


@functools.cache
def stacked_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's parameters by path, with stacked layers, without computing the parameters."""
    abstract = jax.eval_shape(lambda: init_stacked(model, jax.random.key(0)))
    return {path: leaf.shape for path, leaf in abstract.items()}
