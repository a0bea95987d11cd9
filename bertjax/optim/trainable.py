"""Selects the parameters to train, and computes a learning rate factor for each layer.

The train step differentiates and updates only the sub-tree of trained parameters. Frozen parameters need neither
gradients nor optimizer moments.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.errors import UserError
from bertjax.optim.masks import STACKED, path_names

# (path of a parameter) -> whether it is trained.
Selection = Callable[[tuple[str, ...]], bool]


def select_all(path: tuple[str, ...]) -> bool:
    """Selects all parameters for training."""
    del path
    return True


def make_selection(train: str, num_layers: int) -> Selection:
    """Builds the selection for `config.trainable` and an encoder of L = `num_layers` blocks.

    `train` is 'all'; or 'head' for all parameters outside the encoder, including the pooler; or 'last_K', which adds
    the final norm and the last K blocks to 'head' (0 < K <= L). Other values are a UserError.
    """
    if train == 'all':
        return select_all
    if train == 'head':
        return lambda path: path[0] != 'encoder'
    match = re.fullmatch('last_([0-9]+)', train)
    if not match or not 0 < int(match[1]) <= num_layers:
        expected = f"'all', 'head', or 'last_K' with K from 1 to {num_layers}"
        fix = 'choose one of them, for example --config.trainable=last_2'
        raise UserError('config.trainable', repr(train), expected, fix)
    first = num_layers - int(match[1])

    def is_trained(path: tuple[str, ...]) -> bool:
        if path[0] != 'encoder' or path[1] == 'final_norm':
            return True
        return path[1].startswith(f'{STACKED}_') and int(path[1].removeprefix(f'{STACKED}_')) >= first

    return is_trained


def needs_unrolled(train: str) -> bool:
    """Returns whether `train` selects single blocks, which requires unrolled layers (scan_layers=False)."""
    return train.startswith('last_')


def partition(params: dict[str, Any], selection: Selection) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits params into the sub-trees of trained and frozen parameters, without empty branches."""
    leaves = flatten_dict(params)
    trained = {path: leaf for path, leaf in leaves.items() if selection(path)}
    frozen = {path: leaf for path, leaf in leaves.items() if path not in trained}
    return unflatten_dict(trained), unflatten_dict(frozen)


def combine(trained: dict[str, Any], frozen: dict[str, Any]) -> dict[str, Any]:
    """Inverts `partition`."""
    return unflatten_dict(flatten_dict(trained) | flatten_dict(frozen))


def layer_rates(params: Any, decay: float, num_layers: int) -> Any:
    """Computes learning rate factors: `decay` for the last block, decay**2 for the second to last, and so on.

    With L = `num_layers`, the factor is decay**(L + 1) for the embeddings. It is 1 for heads and the final norm.
    Source: ULMFiT (arXiv 1801.06146, section 3.2, "discriminative fine-tuning"). google-research/electra
    (model/optimization.py) multiplies by `decay` once more, which its author calls unintended (issue 51).

    Returns:
      A tree like `params`. A leaf is a number; for stacked blocks, it is an array with one number per block.
    """

    def rate(path: tuple[Any, ...], leaf: Any) -> Any:
        names = path_names(path)
        if names[0] != 'encoder':
            return 1.0
        if names[1] == STACKED:
            powers = jnp.arange(num_layers, 0, -1, dtype=jnp.float32)
            return (decay**powers).reshape(-1, *[1] * (leaf.ndim - 1))
        if names[1].startswith(f'{STACKED}_'):
            return decay ** (num_layers - int(names[1].removeprefix(f'{STACKED}_')))
        return decay ** (num_layers + 1) if names[1] == 'embeddings' else 1.0

    return jax.tree_util.tree_map_with_path(rate, params)
