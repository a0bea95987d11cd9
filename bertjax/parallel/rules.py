"""The table from the model's axis names to mesh axes.

The model names every dimension of its weights and activations; only this file says which mesh axis splits which name.
Weights and activations have different names, so that splitting a weight's `embed` over `fsdp` does not take that mesh
axis away from the batch of an activation that has an `embed` dimension too.
"""

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
)
BATCH_AXES = ('data', 'fsdp')
