"""Tests logical axis names: unknown ones are errors, known ones become shardings."""

import golden_shardings
import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import constrain, mesh_context, state_shardings, with_axes
from bertjax.parallel.rules import AXIS_RULES, BATCH_AXES, MESH_AXES, PRESETS


@pytest.fixture(scope='module')
def mesh():
    return make_mesh({'data': 2, 'fsdp': 2, 'tensor': 2})


def test_the_rules_have_each_logical_axis_once_and_use_all_mesh_axes():
    names = [name for name, _ in AXIS_RULES]
    assert len(names) == len(set(names))
    used = {axis for _, axes in AXIS_RULES for axis in ([axes] if isinstance(axes, str) else axes or [])}
    assert used == set(MESH_AXES)
    assert dict(AXIS_RULES)['act_batch'] == BATCH_AXES


@pytest.mark.parametrize('preset', PRESETS)
def test_shardings_equal_the_record(preset):
    """After an intended change, run `python tests/parallel/golden_shardings.py --renew`."""
    recorded = (golden_shardings.FOLDER / f'{preset}.txt').read_text(encoding='utf-8')
    assert golden_shardings.table(preset) == recorded


def test_an_unknown_axis_is_an_error_in_a_mesh_and_outside(mesh):
    x = jnp.zeros((8, 4))
    with pytest.raises(ValueError, match="unknown logical axis 'act_btach'"):
        constrain(x, 'act_btach', 'act_embed')
    with pytest.raises(ValueError, match="unknown logical axis 'embde'"):
        with_axes(nn.initializers.zeros_init(), 'embde')
    with mesh_context(mesh), pytest.raises(ValueError, match='act_btach'):
        jax.jit(lambda x: constrain(x, 'act_btach', None))(x)


def test_outside_a_mesh_nothing_is_constrained():
    x = jnp.arange(8.0)
    assert constrain(x, 'act_batch') is x


def test_a_constraint_is_applied_inside_the_mesh_context(mesh):
    """If Flax did not know the mesh, the result would silently be replicated."""
    x = jnp.zeros((8, 6, 4))
    with mesh_context(mesh):
        y = jax.jit(lambda x: constrain(x + 1, 'act_batch', 'act_length', 'act_mlp'))(x)
    assert y.sharding.shard_shape(y.shape) == (2, 6, 2)


def test_a_weight_and_an_activation_may_use_the_same_mesh_axis(mesh):
    """'embed' of a weight is split over fsdp. The batch axis of an activation of the same width uses fsdp too."""
    with mesh_context(mesh):
        y = jax.jit(lambda x: constrain(x + 1, 'act_batch', 'act_length', 'act_embed'))(jnp.zeros((8, 6, 4)))
    assert y.sharding.shard_shape(y.shape) == (2, 6, 4)


def test_boxes_become_shardings_and_scalars_are_replicated(mesh):
    def init(key):
        kernel = with_axes(nn.initializers.normal(), 'embed', 'mlp')(key, (8, 4), jnp.float32)
        return {'kernel': kernel, 'count': jnp.zeros([], jnp.int32)}

    shardings = state_shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
    assert shardings['kernel'].spec == PartitionSpec('fsdp', 'tensor')
    assert shardings['count'].spec == PartitionSpec()
