"""Tests the sizes of the mesh, and errors about sizes that do not fit."""

import dataclasses

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec
from ml_collections import ConfigDict

from bertjax.config.check import check_ranges
from bertjax.config.recipes import pretraining_config
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.parallel.mesh import make_mesh, mesh_shape
from bertjax.parallel.partition import batch_sharding, replicated
from bertjax.parallel.rules import PRESETS, mesh_axes
from bertjax.parallel.zero1 import should_shard
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.settings import check_mesh, check_row_count


@pytest.mark.parametrize(
    ('sizes', 'devices', 'shape'),
    [
        ((-1, 1, 1), 1, (1, 1, 1)),
        ((-1, 1, 1), 8, (8, 1, 1)),
        ((1, -1, 1), 8, (1, 8, 1)),
        ((-1, 4, 2), 16, (2, 4, 2)),
        ((2, 2, -1), 8, (2, 2, 2)),
        ((4, 2, 1), 8, (4, 2, 1)),
        ((2, 4, -1), 8, (2, 4, 1)),
    ],
)
def test_an_axis_of_size_minus_1_gets_the_remaining_devices(sizes, devices, shape):
    assert mesh_shape(dict(zip(('data', 'fsdp', 'tensor'), sizes, strict=True)), devices) == shape


def test_a_preset_sets_the_remaining_sizes():
    def shape(**sizes):
        return mesh_shape(mesh_axes(config_of(sizes).mesh), 8)

    def config_of(sizes):
        config = pretraining_config('tiny')
        config.mesh.update(sizes)
        return config

    shapes = {'data': (8, 1, 1), 'fsdp': (1, 8, 1), 'tensor2': (4, 1, 2), 'fsdp_tensor2': (1, 4, 2)}
    assert {name: shape(preset=name) for name in PRESETS} == shapes
    assert shape(preset='fsdp', data=4) == (4, 2, 1) and shape(preset='tensor2', fsdp=2) == (2, 2, 2)
    assert pretraining_settings(config_of({'preset': 'fsdp'})).mesh_axes == {'data': 1, 'fsdp': -1, 'tensor': 1}
    with pytest.raises(UserError, match=r"config.mesh.preset: found 'model', expected one of data, fsdp"):
        check_ranges(config_of({'preset': 'model'}))
    with pytest.raises(UserError, match='data=1 x fsdp=-1 x tensor=3, expected a mesh of 8 device'):
        shape(preset='fsdp_tensor2', tensor=3)


@dataclasses.dataclass(frozen=True)
class FakeChip:
    """A fake device of a 2 x 2 slice."""

    id: int
    slice_index: int
    platform: str = 'tpu'
    device_kind: str = 'TPU v5 lite'
    core_on_chip: int = 0

    @property
    def coords(self):
        return [self.id % 2, self.id // 2 % 2, 0]

    @property
    def process_index(self):
        return self.slice_index


def test_slices_are_along_the_data_axis():
    chips = [FakeChip(i, i // 4) for i in range(8)]
    grid = make_mesh({'data': -1, 'fsdp': 2, 'tensor': 1}, chips).devices
    assert grid.shape == (4, 2, 1)
    assert [{chip.slice_index for chip in row.flat} for row in grid] == [{0}, {0}, {1}, {1}]
    two_slices, one_slice = (make_mesh({'data': -1, 'fsdp': 1, 'tensor': 1}, some) for some in (chips, chips[:4]))
    assert should_shard('auto', one_slice)
    assert should_shard('on', two_slices) and not should_shard('auto', two_slices)
    with pytest.raises(UserError, match=r'config.mesh.data: found 1, expected a multiple of the number of slices, 2'):
        make_mesh({'data': -1, 'fsdp': 8, 'tensor': 1}, chips)


@pytest.mark.parametrize(
    'sizes',
    [(1, 1, 1), (3, 1, 1), (-1, 3, 1), (16, 1, 1), (-1, -1, 1), (0, 1, 8), (-2, 1, 1), (-8, -1, 1), (-1, 16, 1)],
)
def test_the_error_about_sizes_names_the_number_of_devices(sizes):
    axes = dict(zip(('data', 'fsdp', 'tensor'), sizes, strict=True))
    with pytest.raises(UserError) as error:
        mesh_shape(axes, 8)
    assert error.value.where == 'config.mesh'
    assert f'data={sizes[0]} x fsdp={sizes[1]} x tensor={sizes[2]}' in error.value.found
    assert 'the product is 8' in error.value.fix


def test_the_mesh_has_named_axes_of_type_auto():
    mesh = make_mesh(ConfigDict({'data': 2, 'fsdp': 2, 'tensor': -1}))
    assert dict(mesh.shape) == {'data': 2, 'fsdp': 2, 'tensor': 2}
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert mesh.devices.ravel().tolist() == jax.devices()
    assert dict(make_mesh({'data': -1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:3]).shape)['data'] == 3


def test_rows_are_split_over_data_and_fsdp():
    mesh = make_mesh({'data': 2, 'fsdp': 2, 'tensor': 2})
    assert batch_sharding(mesh).spec == PartitionSpec(('data', 'fsdp'))
    assert batch_sharding(mesh).shard_shape((16, 5)) == (4, 5)
    assert replicated(mesh).shard_shape((16, 5)) == (16, 5)


@pytest.mark.parametrize(
    ('batch_size', 'grad_accum_steps', 'shards', 'suggestion'),
    [(12, 1, 8, 8), (30, 2, 8, 16), (16, 4, 8, 32), (4, 1, 8, 8)],
)
def test_an_indivisible_batch_is_refused_with_a_suggestion(batch_size, grad_accum_steps, shards, suggestion):
    config = pretraining_config('tiny', batch_size=batch_size, grad_accum_steps=grad_accum_steps)
    (phase,) = pretraining_settings(config).resolve_phases(100)
    with pytest.raises(UserError) as error:
        check_row_count(phase.batch_size, phase.grad_accum_steps, shards)
    assert error.value.where == 'config.batch_size'
    assert error.value.fix == f'try {suggestion}'
    config.batch_size = suggestion
    (phase,) = pretraining_settings(config).resolve_phases(100)
    check_row_count(phase.batch_size, phase.grad_accum_steps, shards)


@pytest.mark.parametrize(
    ('sizes', 'changes', 'found', 'expected'),
    [
        ((1, 1, 8), {}, r'mesh.tensor: found 8', r'a divisor of config.model.num_heads = 12'),
        ((1, 1, 4), {'mlp_dim': 3074}, r'mesh.tensor: found 4', r'a divisor of config.model.mlp_dim = 3074'),
        ((1, 1, 3), {}, r'mesh.tensor: found 3', r'a divisor of rows of the vocabulary = 30592'),
        ((1, 5, 1), {}, r'mesh.fsdp: found 5', r'a divisor of config.model.width = 768'),
    ],
)
def test_an_indivisible_model_is_refused_with_a_suggestion(sizes, changes, found, expected):
    model = BertConfig(vocab_size=30522, **changes)
    mesh = jax.sharding.AbstractMesh(sizes, ('data', 'fsdp', 'tensor'))
    with pytest.raises(UserError, match=rf'config.{found}, expected {expected}, which the axis splits; lower'):
        check_mesh(model, mesh)
    check_mesh(BertConfig(vocab_size=30522), jax.sharding.AbstractMesh((1, 2, 2), ('data', 'fsdp', 'tensor')))
