"""Train steps with other optimizers: unrolled layers, gradient accumulation, meshes, ZeRO-1 and skipped steps.

tests/optim compares the optimizers with numpy; tests/program/test_resume.py kills such runs.
"""

import functools

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
GATED = {'mlp': 'geglu', 'pre_norm': True, 'position': 'rope'}  # with biases, which Adam trains
WSD = {'name': 'wsd', 'decay': 'sqrt', 'decay_fraction': 0.98, 'power': 1.0}  # the decay starts at step 3 of 100
# {name: (keys of the model, other keys)}
MUON, STABLE = 'muon, gated MLPs, an average', 'stable_adamw, wsd, z-loss, an average'
TRAININGS = {
    MUON: (GATED, {'optimizer': {'name': 'muon'}, 'ema_decay': 0.5}),
    STABLE: (
        {},
        {'optimizer': {'name': 'stable_adamw'}, 'schedule': WSD, 'z_loss': 1e-2, 'ema_decay': 0.5},
    ),
}
UNROLLED = {'model': {'scan_layers': False}, 'grad_accum_steps': 2}
FORMS = {
    'fsdp_tensor2': {'mesh': {'preset': 'fsdp_tensor2'}},
    'ZeRO-1, unrolled, two microbatches': {'mesh': {'preset': 'data'}, 'zero1': 'on', **UNROLLED},
    'ZeRO-1 with tensor2': {'mesh': {'preset': 'tensor2'}, 'zero1': 'on'},
    'ZeRO-1 with fsdp, unrolled, two microbatches': {'mesh': {'data': 2, 'fsdp': 2}, 'zero1': 'on', **UNROLLED},
}
ONE_DEVICE = 'one device'


@pytest.fixture(scope='module')
def build():
    """build(training, form) -> the run, which is built once, so that its program is compiled once."""

    @functools.cache
    def build_once(training, form):
        model_keys, keys = TRAININGS[training]
        changes = dict(FORMS.get(form, {}))
        model_keys = {**NO_DROPOUT, **model_keys, **changes.pop('model', {})}
        return Run(tiny_config(model=model_keys, **{**MESH_RECIPE, **keys, **changes}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)  # shard every array of a tiny model
        yield build_once


@pytest.fixture(scope='module')
def single_device(build):
    """single_device(training) -> (fresh state, final state, metrics of the steps), on the host, with stacked layers."""

    @functools.cache
    def train(training):
        run = build(training, ONE_DEVICE)
        fresh = host(run.init())
        state, rows = run.steps(run.place(fresh), 0, STEPS)
        return fresh, host(state), rows

    return train


# Each optimizer occurs unrolled, sharded and with ZeRO-1, and Muon also with tensor parallelism. The meshes `data`,
# `fsdp` and `tensor2` without ZeRO-1 are those of tests/program/test_meshes.py.
COVERING = [
    (MUON, 'fsdp_tensor2'),
    (MUON, 'ZeRO-1, unrolled, two microbatches'),
    (MUON, 'ZeRO-1 with tensor2'),
    (STABLE, 'ZeRO-1 with fsdp, unrolled, two microbatches'),
]


def place(run, state):
    """Moves a state with stacked layers to the mesh of the run, in the layout of the run."""
    is_params = lambda x: isinstance(x, dict) and 'encoder' in x  # noqa: E731
    unstack = lambda x: unstack_layers(x) if is_params(x) else x  # noqa: E731
    return run.place(state if run.model.scan_layers else jax.tree.map(unstack, state, is_leaf=is_params))


@pytest.mark.parametrize('training, form', COVERING)
def test_the_steps_agree_with_one_device(training, form, build, single_device):
    run, (fresh, state, rows) = build(training, form), single_device(training)
    final, final_rows = run.steps(place(run, fresh), 0, STEPS)
    for row, expected in zip(final_rows, rows, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(expected), rtol=1e-5)
        assert row['sums'].keys() == expected['sums'].keys()
        for name in ('update_norm', 'learning_rate'):
            np.testing.assert_allclose(row['scalars'][name], expected['scalars'][name], rtol=1e-4)
    layout = (lambda params: params) if run.model.scan_layers else unstack_layers
    tolerance = 2e-4 if 'muon' in training else 1e-5  # Muon amplifies rounding errors of nearly singular matrices.
    assert_close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)  # noqa: E731
    jax.tree.map(assert_close, host(final.params), layout(state.params))
    if 'ema_decay' in TRAININGS[training][1]:
        jax.tree.map(assert_close, host(final.ema), layout(state.ema))
        assert all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding == y.sharding, final.ema, final.params)))


@pytest.mark.parametrize('training, form', [COVERING[0], *COVERING[2:]])
def test_the_initial_state_is_that_of_one_device(training, form, build, single_device):
    run, fresh = build(training, form), single_device(training)[0]
    jax.tree.map(np.testing.assert_array_equal, host(run.init()), host(place(run, fresh)))


@pytest.mark.parametrize('training', TRAININGS)
def test_every_matrix_changes(training, single_device):
    """The comparison with one device needs parameters that change."""
    before, after = (partition(state.params, is_block_kernel)[0] for state in single_device(training)[:2])
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.abs(y - x).max() > 1e-3
    rows = single_device(training)[2]
    assert ('z_loss' in rows[0]['sums']) == ('z_loss' in TRAININGS[training][1])
    rates = [float(row['scalars']['learning_rate']) for row in rows]
    assert ('wsd' in training) == (rates[0] == rates[2] > rates[3] > rates[4])


@pytest.mark.parametrize('training, form', [(MUON, ONE_DEVICE), COVERING[1], COVERING[3]])
def test_a_step_that_is_not_finite_changes_nothing(training, form, build, single_device):
    run, learned = build(training, form), single_device(training)[1]
    params = jax.tree.map(np.array, learned.params)
    params['mlm']['dense']['kernel'][0, 0] = np.nan
    broken = learned.replace(params=params)
    before = place(run, broken)
    expected = host(before)
    after = host(run.compiled(before, run.batch(STEPS))[0])
    uncounted = lambda state: state.replace(step=0, skipped=0, skipped_in_row=0)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, uncounted(after), uncounted(expected))
    moments = after.opt_state[1]
    assert (int(after.skipped), int(getattr(moments, 'adam', moments).count)) == (1, STEPS)


def test_muon_works_without_trainable_matrices(single_device):
    """With a frozen encoder, no matrix is trained with Muon."""
    params = single_device(MUON)[0].params
    moving, _ = partition(params, make_selection('head', 2))
    optimizer = make_optimizer(**vars(Optimizer('muon', b2=0.98)))
    direction, state = optimizer.update(moving, optimizer.init(moving), moving)
    assert jax.tree.structure(direction) == jax.tree.structure(moving) and not state[1].muon.trace


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_muon_multiplies_in_the_dtype_of_the_model(dtype):
    run = Run(tiny_config(model={**NO_DROPOUT, **GATED, 'dtype': dtype}, optimizer={'name': 'muon'}))
    update, state = run.setup.optimizer.update, run.setup.state
    text = str(jax.make_jaxpr(update)(state.params, state.opt_state, state.params))
    assert 'dot_general' in text and ('new_dtype=bfloat16' in text) == (dtype == 'bfloat16')
