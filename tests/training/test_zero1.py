"""ZeRO-1 shards parameters and moments, with the same results as replication."""

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
def every_array():
    """Shards all arrays of tiny models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)
        yield


@pytest.fixture(scope='module')
def on_mesh(every_array):
    """(run, final state, metrics of the steps)."""
    run = Run(tiny_config(mesh={'data': 8}, zero1='on', **MESH_RECIPE))
    state, rows = run.steps(run.init(), 0, STEPS)
    return run, state, rows


def mesh_of(**axes):
    return jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))


def assert_same(rows, expected, rtol=1e-5):
    for row, other in zip(rows, expected, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(other), rtol=rtol)
        for name in ('grad_norm', 'param_norm', 'update_norm'):
            np.testing.assert_allclose(row['scalars'][name], other['scalars'][name], rtol=10 * rtol, err_msg=name)


def test_the_exchange_gives_the_gradients_of_all_rows():
    mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
    shapes = {'kernel': (3, 16, 2, 2), 'bias': (2, 2)}
    specs = {'kernel': PartitionSpec(None, 'data'), 'bias': PartitionSpec()}
    draw = np.random.default_rng(0).standard_normal
    params = {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
    rows = draw((16, 16)).astype(np.float32)

    def loss(params, rows):
        return (jnp.einsum('BD,LDHK->BLHK', rows, params['kernel']) + params['bias']).max(1).sum()

    def device_gradients(params, rows):
        value, grads = jax.value_and_grad(loss)(exchange.gather(params), rows)
        return jax.lax.psum(value, zero1.AXIS), exchange.reduce_scatter(grads, specs)

    placed = jax.device_put(params, {name: NamedSharding(mesh, spec) for name, spec in specs.items()})
    exchange = zero1.GradientExchange(placed, 'float32')
    assert exchange.specs == specs and exchange.is_sharded
    with jax.set_mesh(mesh):
        value, grads = jax.jit(exchange.over_devices(device_gradients, specs, 0))(placed, rows)
    expected, expected_grads = jax.value_and_grad(loss)(params, rows)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert grads['kernel'].sharding.is_equivalent_to(placed['kernel'].sharding, 4)
    for name in shapes:
        np.testing.assert_allclose(grads[name], expected_grads[name], rtol=1e-4, atol=1e-5)


def test_heads_are_sent_in_float32():
    params = {name: {'kernel': jnp.full((8, 2), 1 + 2**-10)} for name in ('mlm', 'nsp', 'head')}
    gathered = zero1.GradientExchange(params, 'bfloat16').gather(params)
    assert {name: float(x['kernel'][0, 0]) for name, x in gathered.items()} == {
        'mlm': 1, 'nsp': 1 + 2**-10, 'head': 1 + 2**-10,
    }  # fmt: skip


@pytest.mark.slow
def test_losses_and_norms_with_dropout_agree_with_one_device(one_device_rows, on_mesh):
    assert_same(on_mesh[2], one_device_rows)


@pytest.mark.slow
def test_each_device_has_a_different_shard(on_mesh):
    run, state, _ = on_mesh
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        for path, x in jax.tree_util.tree_leaves_with_path(tree):
            if path_names(path)[-1] in ('kernel', 'embedding') and x.shape[0] > 2:
                assert x.addressable_shards[0].data.size * 8 == x.size, path
    text = run.program.as_text()
    assert re.search(r' all-gather(-start)?\(', text)
    # The loop over the layers has no gathers, because a device computes with full parameters.
    assert not re.search(r'while/body[^"]*(all_gather|psum|reduce_scatter)', text)


@pytest.mark.slow
def test_evaluation_gathers_parameters_once(on_mesh):
    params = on_mesh[1].params
    gathered = zero1.unshard(params)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(gathered))
    jax.tree.map(np.testing.assert_array_equal, host(gathered), host(params))
    assert zero1.unshard(gathered) is gathered


@pytest.mark.slow
def test_kernels_are_sent_in_the_compute_dtype_and_stored_in_float32(every_array):
    recipe = {'model': {'dtype': 'bfloat16', **NO_DROPOUT}, 'mesh': {'data': 8}, 'grad_accum_steps': 2}
    run, plain = (Run(tiny_config(zero1=choice, **recipe)) for choice in ('on', 'off'))
    fresh = host(run.init())
    state, rows = run.steps(run.place(fresh), 0, 2)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    assert_same(rows, plain.steps(plain.place(fresh), 0, 2)[1], rtol=2e-3)


@pytest.mark.slow
def test_lamb_agrees_with_one_device(every_array):
    recipe = {'model': NO_DROPOUT, 'optimizer': {'name': 'lamb', 'clip_norm': 1.0}, **MESH_RECIPE}
    run = Run(tiny_config(mesh={'data': 4}, grad_accum_steps=2, **recipe))
    plain = Run(tiny_config(**recipe))
    fresh = host(run.init())
    assert_same(run.steps(run.place(fresh), 0, 5)[1], plain.steps(plain.place(fresh), 0, 5)[1])


def test_small_or_indivisible_arrays_are_not_sharded(monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 2**16)
    before = NamedSharding(mesh_of(data=8, tensor=1), PartitionSpec(None, 'tensor'))

    def spec(*shape):
        return zero1.shard_over_data(jax.ShapeDtypeStruct(shape, np.float32, sharding=before)).sharding.spec

    assert spec(12, 768, 12, 64) == PartitionSpec(None, 'data')
    assert spec(12, 12, 64, 768) == PartitionSpec(None, None, 'data')
    assert spec(1001, 1024) == PartitionSpec(None, 'data')
    assert spec(8, 8) == spec(1001, 1003) == before.spec


def test_sharded_parameters_are_sharded_further(monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 2**16)
    mesh = mesh_of(data=4, fsdp=2, tensor=2)

    def spec(shape, *axes):
        before = NamedSharding(mesh, PartitionSpec(*axes))
        return zero1.shard_over_data(jax.ShapeDtypeStruct(shape, np.float32, sharding=before)).sharding.spec

    assert spec((12, 768, 12, 64), None, 'fsdp', 'tensor') == PartitionSpec(None, ('fsdp', 'data'), 'tensor')
    assert spec((3072, 768), 'tensor', 'fsdp') == PartitionSpec(('tensor', 'data'), 'fsdp')
    assert spec((1002, 512), 'tensor', 'fsdp') == PartitionSpec('tensor', ('fsdp', 'data'))
    assert spec((254, 512), 'tensor', 'fsdp') == PartitionSpec('tensor', 'fsdp')  # the shard of a device is small


def test_the_choice_to_shard_depends_on_the_mesh():
    def shards(choice, data, fsdp):
        axes = {'data': data, 'fsdp': fsdp, 'tensor': 1}
        return zero1.should_shard(choice, make_mesh(axes, jax.devices()[: data * fsdp]))

    assert shards('auto', 8, 1) and shards('on', 8, 1) and not shards('off', 8, 1)
    assert not shards('auto', 1, 1) and not shards('auto', 2, 4)
    assert shards('on', 2, 4) and not shards('on', 1, 4)
