"""Reads and writes the Dense modules of sentence-transformers: linear layers with an activation.

Source: sentence-transformers 2 to 6 (base/modules/dense.py).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.config.ranges import format_value
from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.names import DENSE_FOLDERS
from bertjax.errors import UserError
from bertjax.model.layers import gelu

# {class of torch.nn: the function}. sentence-transformers constructs the class without arguments.
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    'Identity': lambda x: x,
    'Tanh': jnp.tanh,
    'ReLU': jax.nn.relu,
    'GELU': gelu,
    'SiLU': jax.nn.silu,
    'Sigmoid': jax.nn.sigmoid,
}
_PACKAGES = {'Identity': 'linear'}  # {class: its module in torch.nn.modules}, for modules other than 'activation'


class DenseConfig(NamedTuple):
    """The settings of a Dense module."""

    width: int  # the width of the result
    activation: str  # a key of ACTIVATIONS
    use_bias: bool = True
    normalize_input: bool = False  # whether a Normalize module before the Dense module scales the input to length 1


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A Dense module with its tensors. D is the width of its input, and D' the width of its result."""

    config: DenseConfig
    kernel: np.ndarray = dataclasses.field(repr=False)  # float32 [D, D']
    bias: np.ndarray | None = dataclasses.field(repr=False)  # float32 [D']

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Applies the module to N vectors, float32 [N, D]. Returns float32 [N, D']."""
        if self.config.normalize_input:
            x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        y = x @ self.kernel
        return np.asarray(ACTIVATIONS[self.config.activation](y if self.bias is None else y + self.bias))


def read_dense(folder: epath.Path, settings: Mapping[str, Any], fix: str) -> Dense:
    """Reads a Dense module. `settings` is its config.json.

    `fix` is the fix in the UserError for an unknown activation or a residual connection. A missing or wrong tensor also
    raises a UserError.
    """
    # The default activation of sentence-transformers is tanh.
    activation = str(settings.get('activation_function', 'Tanh')).rpartition('.')[2]
    if activation not in ACTIVATIONS or settings.get('use_residual'):
        found = f'the activation {activation}{" with a residual" if settings.get("use_residual") else ""}'
        raise UserError(str(folder / 'config.json'), found, f'one of {", ".join(ACTIVATIONS)}, without a residual', fix)
    tensors = {name: tensor.values for name, tensor in read_tensors(folder).items()}
    weight, bias = tensors.get('linear.weight', np.zeros(0)), tensors.get('linear.bias')
    sizes = tuple(settings.get(key, n) for key, n in zip(('out_features', 'in_features'), weight.shape, strict=False))
    if (
        weight.ndim != 2
        or sizes != weight.shape
        or (bias is not None and bias.shape != weight.shape[:1])
        or not all(np.isfinite(x).all() for x in (weight, bias) if x is not None)
    ):
        shapes = {name: list(x.shape) for name, x in sorted(tensors.items())}
        expected, again = 'the tensors of a linear layer as in its config.json', 'copy the directory again'
        raise UserError(str(folder), f'the tensors {format_value(shapes)}', expected, again)
    config = DenseConfig(len(weight), activation, bias is not None)
    return Dense(config, np.ascontiguousarray(weight.T), bias)


def dense_settings(config: DenseConfig, width: int) -> dict[str, Any]:
    """Returns the config.json of a Dense module. `width` is the width of the input."""
    return {
        'in_features': width,
        'out_features': config.width,
        'bias': config.use_bias,
        'activation_function': f'torch.nn.modules.{_PACKAGES.get(config.activation, "activation")}.{config.activation}',
    }


def to_tensors(layers: Sequence[Dense]) -> dict[str, np.ndarray]:
    """Returns the tensors of the layers, {name: tensor}, with names such as '2_Dense/linear.weight'."""
    tensors = {}
    for folder, layer in zip(DENSE_FOLDERS, layers, strict=False):
        tensors[f'{folder}/linear.weight'] = np.ascontiguousarray(layer.kernel.T)
        if layer.bias is not None:
            tensors[f'{folder}/linear.bias'] = layer.bias
    return tensors
