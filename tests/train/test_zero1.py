"""ZeRO-1: parameters and moments are sharded over the data axis, with the same results as replicated ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from train_fakes import MESH_RECIPE, NO_DROPOUT, Run, host, loss_of, tiny_config

from bertjax.optim.masks import path_names
from bertjax.parallel import zero1 as zero1
from bertjax.parallel.mesh import make_mesh

STEPS = 10


@pytest.fixture(scope='module')
def alone(dropout_run, fresh):
    """The metrics of the steps on one device."""
    return dropout_run.steps(dropout_run.place(fresh), 0, STEPS)[1]


@pytest.fixture(scope='module')
def every_array():
    """Shards all arrays of tiny models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)
        yield


@pytest.fixture(scope='module')
def spread(every_array):
    """(run, its final state, metrics)."""
    run = Run(tiny_config(mesh={'data': 8}, zero1='on', **MESH_RECIPE))
    state, rows = run.steps(run.init(), 0, STEPS)
    return run, state, rows


def mesh_of(**axes):
    return jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))


def same(rows, expected, rtol=1e-5):
    for row, wanted in zip(rows, expected, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(wanted), rtol=rtol)
        for name in ('grad_norm', 'param_norm', 'update_norm'):
            np.testing.assert_allclose(row['scalars'][name], wanted['scalars'][name], rtol=10 * rtol, err_msg=name)


def test_the_exchange_gives_the_gradients_of_all_rows():
    mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
    shapes = {'kernel': (3, 16, 2, 2), 'bias': (2, 2)}
    specs = {'kernel': PartitionSpec(None, 'data'), 'bias': PartitionSpec()}
    draw = np.random.default_rng(0).standard_normal
    params = {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
    rows = draw((16, 16)).astype(np.float32)

    def loss(params, rows):
        return (jnp.einsum('BD,LDHK->BLHK', rows, params['kernel']) + params['bias']).max(1).sum()

    def own(params, rows):
        value, grads = jax.value_and_grad(loss)(exchange.gather(params), rows)
        return exchange.sum(value), exchange.reduce_scatter(grads, specs)

    placed = jax.device_put(params, {name: NamedSharding(mesh, spec) for name, spec in specs.items()})
    exchange = zero1.GradientExchange(placed, 'float32')
    assert exchange.specs == specs and exchange.is_sharded
    with jax.set_mesh(mesh):
        value, grads = jax.jit(exchange.over_devices(own, specs, 0))(placed, rows)
    wanted, gradients = jax.value_and_grad(loss)(params, rows)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    assert grads['kernel'].sharding.is_equivalent_to(placed['kernel'].sharding, 4)
    for name in shapes:
        np.testing.assert_allclose(grads[name], gradients[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_losses_and_norms_of_one_device_with_dropout(alone, spread):
    same(spread[2], alone)


@pytest.mark.slow
def test_no_two_devices_hold_the_same_part(spread):
    run, state, _ = spread
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        for path, x in jax.tree_util.tree_leaves_with_path(tree):
            if path_names(path)[-1] in ('kernel', 'embedding') and x.shape[0] > 2:
                assert x.addressable_shards[0].data.size * 8 == x.size, path
    text = run.program.as_text()
    assert re.search(r' all-gather(-start)?\(', text)
    # The loop over the layers has no gathers, because a device computes with full parameters.
    assert not re.search(r'while/body[^"]*(all_gather|psum|reduce_scatter)', text)


@pytest.mark.slow
def test_evaluation_gathers_parameters_once(spread):
    params = spread[1].params
    gathered = zero1.unshard(params)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(gathered))
    jax.tree.map(np.testing.assert_array_equal, host(gathered), host(params))
    assert zero1.unshard(gathered) is gathered


@pytest.mark.slow
def test_kernels_are_sent_in_the_compute_dtype_and_stored_in_float32(every_array):
    recipe = {'model': {'dtype': 'bfloat16', **NO_DROPOUT}, 'mesh': {'data': 8}, 'grad_accum_steps': 2}
    run, plain = (Run(tiny_config(zero1=choice, **recipe)) for choice in ('on', 'off'))
    state, rows = run.steps(run.init(), 0, 2)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    same(rows, plain.steps(plain.init(), 0, 2)[1], rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['lamb', 'adamw'])
def test_other_optimisers_and_parts_of_a_batch(optimizer, every_array):
    recipe = {'model': NO_DROPOUT, 'optimizer': {'name': optimizer, 'clip_norm': 1.0}, **MESH_RECIPE}
    run = Run(tiny_config(mesh={'data': 4}, grad_accum_steps=2, **recipe))
    plain = Run(tiny_config(**recipe))
    same(run.steps(run.init(), 0, 5)[1], plain.steps(plain.init(), 0, 5)[1])


def test_small_or_indivisible_arrays_are_not_sharded(monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 2**16)
    before = NamedSharding(mesh_of(data=8, tensor=1), PartitionSpec(None, 'tensor'))

    def spec(*shape):
        return zero1.shard_over_data(jax.ShapeDtypeStruct(shape, np.float32, sharding=before)).sharding.spec

    assert spec(12, 768, 12, 64) == PartitionSpec(None, 'data')
    assert spec(12, 12, 64, 768) == PartitionSpec(None, None, 'data')
    assert spec(1001, 1024) == PartitionSpec(None, 'data')
    assert spec(8, 8) == spec(1001, 1003) == before.spec


def test_split_parameters_are_split_further(monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 2**16)
    mesh = mesh_of(data=4, fsdp=2, tensor=2)

    def spec(shape, *axes):
        before = NamedSharding(mesh, PartitionSpec(*axes))
        return zero1.shard_over_data(jax.ShapeDtypeStruct(shape, np.float32, sharding=before)).sharding.spec

    assert spec((12, 768, 12, 64), None, 'fsdp', 'tensor') == PartitionSpec(None, ('fsdp', 'data'), 'tensor')
    assert spec((3072, 768), 'tensor', 'fsdp') == PartitionSpec(('tensor', 'data'), 'fsdp')
    assert spec((1002, 512), 'tensor', 'fsdp') == PartitionSpec('tensor', ('fsdp', 'data'))
    assert spec((254, 512), 'tensor', 'fsdp') == PartitionSpec('tensor', 'fsdp')  # the shard of a device is small


def test_when_to_shard():
    def spreads(choice, data, fsdp):
        axes = {'data': data, 'fsdp': fsdp, 'tensor': 1}
        return zero1.should_shard(choice, make_mesh(axes, jax.devices()[: data * fsdp]))

    assert spreads('auto', 8, 1) and spreads('on', 8, 1) and not spreads('off', 8, 1)
    assert not spreads('auto', 1, 1) and not spreads('auto', 2, 4)
    assert spreads('on', 2, 4) and not spreads('on', 1, 4)
