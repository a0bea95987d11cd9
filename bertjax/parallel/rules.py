"""The table from logical axis names to mesh axes, and the mesh presets.

The model names every dimension of its weights and activations, and only this file maps the names to mesh axes. Weights
and activations have different names: `fsdp` splits the `embed` dimension of weights, but the rows of activations.
"""

from collections.abc import Mapping
from typing import Any

MESH_AXES = ('data', 'fsdp', 'tensor')
BATCH_AXES = ('data', 'fsdp')  # the axes that split the rows of a batch

# (logical axis, mesh axes). Names that are not in this table are an error (parallel/partition.py).
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
    ('act_batch', BATCH_AXES),
    ('act_length', None),
    ('act_pred', None),
    ('act_embed', None),
    ('act_heads', 'tensor'),
    ('act_head_dim', None),
    ('act_mlp', 'tensor'),
    ('act_vocab', 'tensor'),
    # the matrices of one shape that Muon orthogonalizes together
    ('act_matrices', MESH_AXES),
)

_DEFAULT = {'data': -1, 'fsdp': 1, 'tensor': 1}  # -1: all remaining devices
# config.mesh.preset -> the sizes that differ from the defaults.
PRESETS: dict[str, dict[str, int]] = {
    'data': {},
    'fsdp': {'data': 1, 'fsdp': -1},
    'tensor2': {'tensor': 2},
    'fsdp_tensor2': {'data': 1, 'fsdp': -1, 'tensor': 2},
}


def mesh_axes(mesh: Mapping[str, Any]) -> dict[str, int]:
    """Resolves config.mesh to {axis: size}. A size that differs from its default overrides the preset."""
    preset = {**_DEFAULT, **PRESETS[mesh['preset']]}
    return {axis: preset[axis] if mesh[axis] == default else mesh[axis] for axis, default in _DEFAULT.items()}
