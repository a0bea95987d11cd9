"""Training a part of a model: which parameters are trained, and the learning rate of each layer.

A frozen parameter has no gradient computed and no moments kept: the step differentiates and updates the sub-tree of
what is trained, and combines it with the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.errors import UserError
from bertjax.optim.masks import STACKED, path_names

# path of a parameter -> whether it is trained.
Selection = Callable[[tuple[str, ...]], bool]


def select_all(path: tuple[str, ...]) -> bool:
    """Trains all parameters."""
    del path
    return True


def make_selection(train: str, num_layers: int) -> Selection:
    """The parameters that `config.train` names.

    Args:
      train: 'all'; 'head', everything but the encoder (the pooler belongs to the head); or 'last_K', the head and the
        last K blocks (0 < K <= L).
      num_layers: L, the blocks of the encoder.

    Raises:
      UserError: another word, or more blocks than there are.
    """
    if train == 'all':
        return select_all
    if train == 'head':
        return lambda path: path[0] != 'encoder'
    count = train.removeprefix('last_')
    if not train.startswith('last_') or not count.isdigit() or not 0 < int(count) <= num_layers:
        expected = f"'all', 'head', or 'last_K' with K from 1 to {num_layers}"
        raise UserError('config.train', repr(train), expected, 'for example --config.train=last_2')
    first = num_layers - int(count)

    def trained(path: tuple[str, ...]) -> bool:
        if path[0] != 'encoder' or path[1] == 'final_norm':
            return True
        return path[1].startswith(f'{STACKED}_') and int(path[1].removeprefix(f'{STACKED}_')) >= first

    return trained


def needs_unrolled(train: str) -> bool:
    """Whether `train` distinguishes blocks, which stacked ones (scan_layers) do not allow."""
    return train.startswith('last_')


def partition(
    params: Mapping[str, Any], trained: Selection, path: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sub-trees of what is trained and of what is frozen; each leaves out branches that hold nothing of it."""
    chosen: dict[str, Any] = {}
    frozen: dict[str, Any] = {}
    for name, value in params.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            inner, outer = partition(value, trained, here)
            chosen |= {name: inner} if inner else {}
            frozen |= {name: outer} if outer else {}
        else:
            (chosen if trained(here) else frozen)[name] = value
    return chosen, frozen


def combine(chosen: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `partition`."""
    shared = {name: combine(chosen[name], frozen[name]) for name in chosen if name in frozen}
    return {**chosen, **frozen, **shared}


def layer_rates(params: Any, decay: float, num_layers: int) -> Any:
    """Factors of the learning rate: 1 for heads, `decay` for the last block, decay**2 for the one before, ...

    The embeddings, below the first of L blocks, have decay**(L + 1). Source: ULMFiT (arXiv 1801.06146, section 3.2,
    "discriminative fine-tuning"), in the form of ELECTRA's (google-research/electra, model/optimization.py).

    Args:
      params: the tree whose structure the result has; stacked blocks get an array over their first axis.
      decay: in (0, 1]; with 1 all layers have the same rate.
      num_layers: L.
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
