"""The train step on eight devices: the losses of one device, shardings and collectives."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from train_fakes import MESH_RECIPE, NO_DROPOUT, B, RandomExamples, Run, host, loss_of, tiny_config

from bertjax.model.stacking import init_params
from bertjax.optim.masks import path_names

# Both ways to shard weights; tests/program/test_meshes.py tests other meshes.
MESH = {'data': 1, 'fsdp': 4, 'tensor': 2}
STEPS = 10


@pytest.fixture(scope='module')
def on_mesh():
    """(run, initial state on the host, metrics of the steps, final state on the mesh)."""
    run = Run(tiny_config(mesh=MESH, **MESH_RECIPE))
    assert run.mesh.size == 8
    initial = run.init()
    first = host(initial)
    # A program from the cache could have the names of operations of an older source.
    jax.config.update('jax_compilation_cache_include_metadata_in_key', True)
    final, rows = run.steps(initial, 0, STEPS)
    jax.config.update('jax_compilation_cache_include_metadata_in_key', False)
    return run, first, rows, final


@pytest.mark.slow
def test_the_losses_with_dropout_agree_with_one_device(one_device_rows, on_mesh):
    _, _, rows, _ = on_mesh
    assert [float(row['sums']['mlm_loss'][1]) for row in rows] == [
        float(row['sums']['mlm_loss'][1]) for row in one_device_rows
    ]
    for row, expected in zip(rows, one_device_rows, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(expected), rtol=1e-5)
        for name in ('mlm_loss', 'nsp_loss'):
            np.testing.assert_allclose(row['sums'][name][0], expected['sums'][name][0], rtol=1e-5)
        for name in ('grad_norm', 'param_norm'):
            np.testing.assert_allclose(row['scalars'][name], expected['scalars'][name], rtol=1e-4, err_msg=name)
    # The comparison needs parameters that change.
    assert abs(loss_of(rows[-1]) - loss_of(rows[0])) > 0.01
    assert rows[-1]['scalars']['update_norm'] > 1e-2


@pytest.mark.slow
def test_the_initial_state_does_not_depend_on_the_mesh(fresh, on_mesh):
    for x, y in zip(jax.tree.leaves(on_mesh[1]), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_the_initial_state_is_traced_once(monkeypatch):
    """Although the shapes and shardings are computed before the state."""
    traces = []
    monkeypatch.setattr(
        'bertjax.training.setup.init_params', lambda model, key: traces.append(1) or init_params(model, key)
    )
    Run(tiny_config(mesh=MESH, **MESH_RECIPE)).init()
    assert len(traces) == 1


# Mesh axes of the sharded parameters, without the layer axis; all other parameters are replicated.
SHARDED = {
    'token/embedding': ('tensor', 'fsdp'),
    'position/embedding': (None, 'fsdp'),
    'segment/embedding': (None, 'fsdp'),
    'query/kernel': ('fsdp', 'tensor', None),
    'key/kernel': ('fsdp', 'tensor', None),
    'value/kernel': ('fsdp', 'tensor', None),
    'query/bias': ('tensor', None),
    'key/bias': ('tensor', None),
    'value/bias': ('tensor', None),
    'attention/output/kernel': ('tensor', None, 'fsdp'),
    'up/kernel': ('fsdp', 'tensor'),
    'up/bias': ('tensor',),
    'down/kernel': ('tensor', 'fsdp'),
    'dense/kernel': ('fsdp', None),
    'pooler/kernel': ('fsdp', None),
    'nsp/kernel': ('fsdp', None),
    'mlm/bias': ('tensor',),
}


def expected_shard(name, shape, mesh):
    axes = next((axes for ending, axes in SHARDED.items() if name.endswith(ending)), ())
    if 'layers' in name.split('/') and axes:
        axes = (None, *axes)
    sizes = [mesh.shape[axis] if axis else 1 for axis in (*axes, *[None] * (len(shape) - len(axes)))]
    return tuple(n // size for n, size in zip(shape, sizes, strict=True))


@pytest.mark.slow
def test_parameters_and_moments_have_the_expected_shardings(on_mesh):
    run, _, _, state = on_mesh
    sharded = set()
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        assert len(leaves) == 30
        for path, x in leaves:
            name = '/'.join(path_names(path))
            assert x.sharding.shard_shape(x.shape) == expected_shard(name, x.shape, run.mesh), name
            if x.sharding.shard_shape(x.shape) != x.shape:
                sharded.add(name)
    assert len(sharded) == 17
    for scalar in (state.step, state.skipped, state.opt_state[1].count):
        assert scalar.sharding.is_fully_replicated
        assert scalar.sharding.spec == PartitionSpec()


@pytest.mark.slow
def test_each_device_has_its_rows_of_the_batch(on_mesh):
    run, *_ = on_mesh
    rows = B // (run.mesh.shape['data'] * run.mesh.shape['fsdp'])
    for x in run.batch(0).arrays.values():
        assert x.sharding.shard_shape(x.shape) == (rows, *x.shape[1:])


def collectives(run, kind):
    """Returns (shape of the result on a device, name of the operation) for each collective of a kind."""
    lines = [line for line in run.program.as_text().splitlines() if re.search(rf' {kind}(-start)?\(', line)]
    shapes = [re.findall(r'\[([\d,]*)\]', line.split(f' {kind}')[0])[-1] for line in lines]
    names = [found[1] if (found := re.search(r'op_name="([^"]*)"', line)) else '' for line in lines]
    return list(zip(shapes, names, strict=True))


@pytest.mark.slow
def test_the_expected_collectives(on_mesh):
    run, *_ = on_mesh
    assert collectives(run, 'all-reduce')
    gathers = collectives(run, 'all-gather')
    # The weights of a layer are gathered inside the loop over the layers, in the forward and in the backward pass, and
    # remain sharded over `tensor`. The name of the operation with a gather depends on the version of jax.
    query_key_value, output, up_down = ['32,16'] * 3, ['16,32'], ['32,32'] * 2
    for way in ('/jvp(BertForPreTraining)', '/transpose(jvp(BertForPreTraining))'):
        shapes = [shape for shape, name in gathers if f'{way}/encoder/while/body' in name]
        assert sorted(shapes) == sorted([*query_key_value, *output, *up_down])
    assert all('while/body' in name for _, name in gathers if 'layers' in name), gathers


@pytest.mark.slow
def test_a_step_transfers_nothing_between_host_and_devices(on_mesh):
    run, _, _, state = on_mesh
    batch = run.batch(STEPS)
    placed = run.place(host(state))
    with jax.transfer_guard('disallow'):
        new, _ = run.compiled(placed, batch)
    assert int(new.step) == STEPS + 1
    # The state is donated: the new state uses the memory of the old one.
    assert all(x.is_deleted() for x in jax.tree.leaves(placed.params))


@pytest.mark.slow
def test_accumulation_on_a_mesh_moves_no_rows(accumulating_run, fresh):
    """Microbatch a has the rows a, a + 4, …, so each device uses its own rows."""
    sharded = Run(tiny_config(model=NO_DROPOUT, warmup_fraction=0.5, grad_accum_steps=4, mesh={'data': 4}))
    rows = RandomExamples().batch(np.arange(B))
    _, one = accumulating_run.compiled(accumulating_run.place(fresh), accumulating_run.put(rows))
    _, four = sharded.compiled(sharded.place(fresh), sharded.put(rows))
    np.testing.assert_allclose(loss_of(four), loss_of(one), rtol=1e-5)
    np.testing.assert_allclose(four['scalars']['grad_norm'], one['scalars']['grad_norm'], rtol=1e-5)
    for kind in ('all-to-all', 'collective-permute', 'all-gather'):
        assert not collectives(sharded, kind)
