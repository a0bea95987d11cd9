"""ZeRO-1: parameters and moments split over the data axis, and the numbers of a run that has copies of them."""

import re

import jax
import numpy as np
import pytest
from train_fakes import MESH_RECIPE, NO_DROPOUT, Run, loss_of, tiny_config

from bertjax.optim.masks import path_names
from bertjax.parallel import spread as zero1

MESHES = {'data=8': {'data': 8}, 'fsdp=2 x tensor=2': {'data': 2, 'fsdp': 2, 'tensor': 2}}
STEPS = 10


@pytest.fixture(scope='module')
def alone(dropout_run, fresh):
    """Metrics of the steps on one device."""
    return dropout_run.steps(dropout_run.place(fresh), 0, STEPS)[1]


@pytest.fixture(
    scope='module', params=[pytest.param('data=8'), pytest.param('fsdp=2 x tensor=2', marks=pytest.mark.slow)]
)
def spread(request):
    """(run, its state at the end, metrics), with all arrays worth an exchange."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)
        run = Run(tiny_config(mesh=MESHES[request.param], zero1=True, **MESH_RECIPE))
        state, rows = run.steps(run.init(), 0, STEPS)
    return run, state, rows


def test_the_losses_and_norms_of_one_device(alone, spread):
    for row, wanted in zip(spread[2], alone, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(wanted), rtol=1e-5)
        for name in ('grad_norm', 'param_norm', 'update_norm'):
            np.testing.assert_allclose(row['scalars'][name], wanted['scalars'][name], rtol=1e-4, err_msg=name)


def test_no_two_devices_hold_the_same_part(spread):
    run, state, _ = spread
    copies = run.mesh.size
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        for path, x in jax.tree_util.tree_leaves_with_path(tree):
            if path_names(path)[-1] in ('kernel', 'embedding') and x.shape[-1] > 2:
                assert x.addressable_shards[0].data.size * copies == x.size, path
    gathered = [line for line in run.program.as_text().splitlines() if re.search(r' all-gather(-start)?\(', line)]
    assert gathered


def test_kernels_are_exchanged_as_they_are_computed_with_and_kept_in_float32():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)
        run = Run(tiny_config(model={'dtype': 'bfloat16', **NO_DROPOUT}, mesh={'data': 8}, zero1=True, accumulate=2))
    state, rows = run.steps(run.init(), 0, 2)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    plain = Run(tiny_config(model={'dtype': 'bfloat16', **NO_DROPOUT}, mesh={'data': 8}, accumulate=2))
    _, expected = plain.steps(plain.init(), 0, 2)
    for row, wanted in zip(rows, expected, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(wanted), rtol=2e-3)
        np.testing.assert_allclose(row['scalars']['grad_norm'], wanted['scalars']['grad_norm'], rtol=2e-2)


def test_what_is_small_or_divides_by_nothing_stays_as_it_is():
    mesh = Run(tiny_config(mesh={'data': 8})).mesh
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, 'tensor'))
    spec = lambda *shape: zero1.spread(jax.ShapeDtypeStruct(shape, np.float32, sharding=whole)).spec  # noqa: E731
    P = jax.sharding.PartitionSpec
    assert spec(12, 768, 12, 64) == P(None, ('tensor', 'data'), None, None)
    assert spec(8, 8) == spec(1001, 1003) == P(None, 'tensor')
