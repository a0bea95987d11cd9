"""Parameter trees by path, with stacked layers: the form that names.py works on."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict

from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params, stack_layers


def flat_paths(tree: Mapping) -> dict[str, Any]:
    """Leaves by path, as 'encoder/embeddings/norm/scale'."""
    return flatten_dict(tree, sep='/')


def flat_stacked(params: Mapping, config: BertConfig) -> dict[str, np.ndarray]:
    """Parameters as float32 on the host, by path, with stacked layers, whatever form the config says they have."""
    tree = jax.tree.map(lambda x: np.asarray(x, np.float32), nn.unbox(dict(params)))
    return flat_paths(tree if config.scan_layers else stack_layers(tree))


def init_stacked(model: nn.Module, key: jax.Array) -> dict[str, jax.Array]:
    """Fresh parameters with stacked layers, by path."""
    model = model.clone(config=dataclasses.replace(model.config, scan_layers=True))
    inputs = [np.zeros(shape, np.int32) for shape in model.smallest_inputs]
    return flat_paths(nn.unbox(init_params(model, key, *inputs)))


@functools.cache
def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters with stacked layers, by path; nothing is computed."""
    abstract = jax.eval_shape(lambda: init_stacked(model, jax.random.key(0)))
    return {path: leaf.shape for path, leaf in abstract.items()}
