"""Which parameters decay, and which are stacks of layers, told by their path."""

from typing import Any

import jax

# Path components of parameters whose leading axis is the layer (nn.scan).
STACKED = 'layers'
UNDECAYED = ('bias', 'scale')


def path_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Dict keys on the way to a leaf, without the boxes that hold Linen's axis names."""
    return tuple(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: everything but biases and LayerNorm scales.

    As google-research/bert (optimization.py, exclude_from_weight_decay) has it: embeddings do decay.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path_names(path)[-1] not in UNDECAYED, params)


def is_stacked(path: tuple[Any, ...]) -> bool:
    """True for a parameter that holds all layers along its first axis."""
    return STACKED in path_names(path)


def describe_decay(params: Any) -> str:
    """Two lines, what decays and what does not, for the log at the start of a run."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for path, decays in jax.tree_util.tree_flatten_with_path(decay_mask(params))[0]:
        groups[decays].append('/'.join(path_names(path)))
    return f'weight decay on {_brief(groups[True])}\nno weight decay on {_brief(groups[False])}'


def _brief(names: list[str]) -> str:
    endings: dict[str, int] = {}
    for name in names:
        ending = '/'.join(name.split('/')[-2:])
        endings[ending] = endings.get(ending, 0) + 1
    return f'{len(names)} tensors: ' + ', '.join(f'{e} x{n}' if n > 1 else e for e, n in sorted(endings.items()))
