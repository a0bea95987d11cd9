"""Muon in the train step: stacked or not, with accumulation, on meshes. tests/optim compares it with numpy."""

import jax
import numpy as np
import pytest
from train_fakes import MESH_RECIPE, NO_DROPOUT, Run, host, loss_of, tiny_config

from bertjax.config.run import Optimizer
from bertjax.model.stacking import unstack_layers
from bertjax.optim.muon import is_block_kernel
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.trainable import make_selection, partition
from bertjax.parallel import zero1 as zero1

pytestmark = pytest.mark.slow
STEPS = 5
FORMS = {
    'unrolled, in two parts': {'model': {'scan_layers': False}, 'grad_accum_steps': 2},
    'fsdp and tensor': {'mesh': {'data': 1, 'fsdp': 4, 'tensor': 2}},
    'ZeRO-1': {'mesh': {'data': 8}, 'zero1': 'on'},
    'ZeRO-1 beside fsdp': {'mesh': {'data': 2, 'fsdp': 2}, 'zero1': 'on'},
}


def muon(model=None, **changes):
    return Run(tiny_config(model={**NO_DROPOUT, **(model or {})}, optimizer={'name': 'muon'}, **MESH_RECIPE, **changes))


@pytest.fixture(scope='module')
def alone():
    """(fresh state on the host, state and metrics after the steps), stacked and on one device."""
    run = muon()
    fresh = host(run.init())
    state, rows = run.steps(run.place(fresh), 0, STEPS)
    return fresh, host(state), rows


@pytest.mark.parametrize('form', FORMS)
def test_the_steps_of_one_device(form, alone, monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 0)  # shard every array of a tiny model
    run, (_, state, rows) = muon(**FORMS[form]), alone
    found, found_rows = run.steps(run.init(), 0, STEPS)
    for row, wanted in zip(found_rows, rows, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(wanted), rtol=1e-5)
        np.testing.assert_allclose(row['scalars']['update_norm'], wanted['scalars']['update_norm'], rtol=1e-4)
    expected = state.params if run.model.scan_layers else unstack_layers(state.params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-4), host(found).params, expected)


def test_every_matrix_moves(alone):
    """Equal results prove nothing if the parameters do not change."""
    before, after = (partition(state.params, is_block_kernel)[0] for state in alone[:2])
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.abs(y - x).max() > 1e-3


def test_a_step_that_is_not_finite_changes_nothing(alone):
    run, learned = muon(), alone[1]
    params = jax.tree.map(np.array, learned.params)
    params['mlm']['dense']['kernel'][0, 0] = np.nan
    broken = learned.replace(params=params)
    after = host(run.compiled(run.place(broken), run.batch(STEPS))[0])
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.opt_state), (params, learned.opt_state))
    assert (int(after.skipped), int(after.opt_state[1].adam.count)) == (1, STEPS)


def test_a_part_of_the_model_can_be_trained():
    """With a frozen encoder, Muon has no matrices."""
    params = host(muon().init()).params
    moving, _ = partition(params, make_selection('head', 2))
    optimizer = make_optimizer(**vars(Optimizer('muon', b2=0.98)))
    direction, state = optimizer.update(moving, optimizer.init(moving), moving)
    assert jax.tree.structure(direction) == jax.tree.structure(moving) and not state[1].muon.trace
