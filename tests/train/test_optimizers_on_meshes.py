"""Trainings other than BERT's in the train step: unrolled, with accumulation, on each mesh, with ZeRO-1, and skipped.

tests/optim compares the optimisers with numpy, tests/program/test_resume.py kills such trainings.
"""

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
from bertjax.parallel.rules import PRESETS

pytestmark = pytest.mark.slow
STEPS = 5
GATED = {'mlp': 'geglu', 'projection_bias': False, 'norm_bias': False, 'pre_norm': True, 'position': 'rope'}
WSD = {'name': 'wsd', 'decay': 'sqrt', 'decay_fraction': 0.98, 'power': 1.0}  # of 100 steps: from the third step on
# {name: (keys of the model, other keys)}
TRAININGS = {
    'muon': ({}, {'optimizer': {'name': 'muon'}}),
    'muon, gated MLPs, an average': (GATED, {'optimizer': {'name': 'muon'}, 'ema_decay': 0.5}),
    'stable_adamw, wsd, z-loss, an average': (
        {},
        {'optimizer': {'name': 'stable_adamw'}, 'schedule': WSD, 'z_loss': 1e-2, 'ema_decay': 0.5},
    ),
}
FORMS = {
    'unrolled, in two parts': {'model': {'scan_layers': False}, 'grad_accum_steps': 2},
    **{preset: {'mesh': {'preset': preset}} for preset in PRESETS},
    'ZeRO-1': {'mesh': {'preset': 'data'}, 'zero1': 'on'},
    'ZeRO-1 in two parts': {'mesh': {'data': 4}, 'zero1': 'on', 'grad_accum_steps': 2},
    'ZeRO-1 beside tensor2': {'mesh': {'preset': 'tensor2'}, 'zero1': 'on'},
    'ZeRO-1 beside fsdp': {'mesh': {'data': 2, 'fsdp': 2}, 'zero1': 'on'},
}


def build(training, model=None, **changes):
    model_keys, keys = TRAININGS[training]
    model_keys = {**NO_DROPOUT, **model_keys, **(model or {})}
    return Run(tiny_config(model=model_keys, **{**MESH_RECIPE, **keys, **changes}))


@pytest.fixture(scope='module')
def alone():
    """alone(training) -> (fresh state on the host, state and metrics after the steps), stacked and on one device."""
    known = {}

    def trained(training):
        if training not in known:
            run = build(training)
            fresh = host(run.init())
            state, rows = run.steps(run.place(fresh), 0, STEPS)
            known[training] = fresh, host(state), rows
        return known[training]

    return trained


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('training', TRAININGS)
def test_the_steps_of_one_device(training, form, alone, monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 0)  # shard every array of a tiny model
    run, (_, state, rows) = build(training, **FORMS[form]), alone(training)
    found, found_rows = run.steps(run.init(), 0, STEPS)
    for row, wanted in zip(found_rows, rows, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(wanted), rtol=1e-5)
        assert row['sums'].keys() == wanted['sums'].keys()
        for name in ('update_norm', 'learning_rate'):
            np.testing.assert_allclose(row['scalars'][name], wanted['scalars'][name], rtol=1e-4)
    layout = (lambda params: params) if run.model.scan_layers else unstack_layers
    tolerance = 2e-4 if 'muon' in training else 1e-5  # Muon amplifies the rounding of nearly singular matrices.
    same = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)  # noqa: E731
    jax.tree.map(same, host(found.params), layout(state.params))
    if 'ema_decay' in TRAININGS[training][1]:
        jax.tree.map(same, host(found.ema), layout(state.ema))
        assert all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding == y.sharding, found.ema, found.params)))


@pytest.mark.parametrize('training', TRAININGS)
def test_every_matrix_moves(training, alone):
    """Equal results prove nothing if the parameters do not change."""
    before, after = (partition(state.params, is_block_kernel)[0] for state in alone(training)[:2])
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.abs(y - x).max() > 1e-3
    rows = alone(training)[2]
    assert ('z_loss' in rows[0]['sums']) == ('z_loss' in TRAININGS[training][1])
    rates = [float(row['scalars']['learning_rate']) for row in rows]
    assert ('wsd' in training) == (rates[0] == rates[2] > rates[3] > rates[4])


@pytest.mark.parametrize('zero1_choice', ['off', 'on'])
@pytest.mark.parametrize('training', TRAININGS)
def test_a_step_that_is_not_finite_changes_nothing(training, zero1_choice, alone, monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 0)
    changes = {'mesh': {'preset': 'data'}, 'zero1': 'on'} if zero1_choice == 'on' else {}
    run, learned = build(training, **changes), alone(training)[1]
    params = jax.tree.map(np.array, learned.params)
    params['mlm']['dense']['kernel'][0, 0] = np.nan
    broken = learned.replace(params=params)
    after = host(run.compiled(run.place(broken), run.batch(STEPS))[0])
    same = lambda state: state.replace(step=0, skipped=0, skipped_in_row=0)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, same(after), same(broken))
    moments = after.opt_state[1]
    assert (int(after.skipped), int(getattr(moments, 'adam', moments).count)) == (1, STEPS)


def test_a_part_of_the_model_can_be_trained():
    """With a frozen encoder, Muon has no matrices."""
    params = host(build('muon').init()).params
    moving, _ = partition(params, make_selection('head', 2))
    optimizer = make_optimizer(**vars(Optimizer('muon', b2=0.98)))
    direction, state = optimizer.update(moving, optimizer.init(moving), moving)
    assert jax.tree.structure(direction) == jax.tree.structure(moving) and not state[1].muon.trace
