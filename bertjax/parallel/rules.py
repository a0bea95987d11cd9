"""The table from the model's axis names to mesh axes, and meshes by name.

The model names every dimension of its weights and activations; only this file says which mesh axis splits which name.
Weights and activations have different names, so that splitting a weight's `embed` over `fsdp` does not take that mesh
axis away from the batch of an activation that has an `embed` dimension too.
"""

from collections.abc import Mapping
from typing import Any

MESH_AXES = ('data', 'fsdp', 'tensor')

# (logical axis, mesh axes). A name that is not listed here is an error (parallel/partition.py).
AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    # weights
    ('vocab', 'tensor'),
    ('embed', 'fsdp'),
    ('heads', 'tensor'),
    ('head_dim', None),
    ('mlp', 'tensor'),
    ('position', None),
    ('type', None),
    ('classes', None),
    ('layers', None),
    ('norm', None),
    # activations
    ('act_batch', ('data', 'fsdp')),
    ('act_length', None),
    ('act_pred', None),
    ('act_embed', None),
    ('act_heads', 'tensor'),
    ('act_head_dim', None),
    ('act_mlp', 'tensor'),
    ('act_vocab', 'tensor'),
    ('act_classes', None),
    # Muon orthogonalises all matrices of one shape together; each device computes some of them
    ('act_matrices', ('data', 'fsdp', 'tensor')),
)
BATCH_AXES = ('data', 'fsdp')

_USUAL = {'data': -1, 'fsdp': 1, 'tensor': 1}  # -1: the devices that the others leave
# config.mesh.preset -> the sizes that are not the usual ones.
PRESETS: dict[str, dict[str, int]] = {
    'data': {},
    'fsdp': {'data': 1, 'fsdp': -1},
    'tensor2': {'tensor': 2},
    'fsdp_tensor2': {'data': 1, 'fsdp': -1, 'tensor': 2},
}


def mesh_axes(given: Mapping[str, Any]) -> dict[str, int]:
    """Sizes by axis of config.mesh: what is set there, and of what is left as usual the preset's; runs from before
    there were presets name none."""
    preset = {**_USUAL, **PRESETS[given.get('preset', 'data')]}
    return {axis: preset[axis] if given[axis] == usual else given[axis] for axis, usual in _USUAL.items()}
