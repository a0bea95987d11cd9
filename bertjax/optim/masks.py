"""Finds the parameters with weight decay, and the stacked parameters, by their paths."""

import collections
from typing import Any

import jax

# The path of a parameter contains this name if the first axis of the parameter runs over the layers (nn.scan).
STACKED = 'layers'
NO_DECAY = ('bias', 'scale')


def path_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns the dict keys on the path to a leaf, without the entries of Linen's boxes."""
    return tuple(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))


def decay_mask(params: Any) -> Any:
    """Returns a tree of bools, True for parameters with weight decay: all except those with a name in NO_DECAY.

    Embeddings decay, as in google-research/bert (optimization.py, exclude_from_weight_decay).
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path_names(path)[-1] not in NO_DECAY, params)


def is_stacked(path: tuple[Any, ...]) -> bool:
    """Returns whether the first axis of a parameter runs over the layers."""
    return STACKED in path_names(path)


def describe_decay(params: Any) -> str:
    """Describes the parameters with and without weight decay in two lines, for the log."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for path, decays in jax.tree_util.tree_flatten_with_path(decay_mask(params))[0]:
        groups[decays].append('/'.join(path_names(path)))
    return f'weight decay on {_summarize_names(groups[True])}\nno weight decay on {_summarize_names(groups[False])}'


def _summarize_names(names: list[str]) -> str:
    endings = collections.Counter('/'.join(name.split('/')[-2:]) for name in names)
    return f'{len(names)} tensors: ' + ', '.join(f'{e} x{n}' if n > 1 else e for e, n in sorted(endings.items()))
