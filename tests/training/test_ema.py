"""The average of the weights; test_optimizers_on_meshes.py tests it on meshes and tests/program tests resuming."""

import jax
import numpy as np
import pytest
from train_fakes import NO_DROPOUT, Run, host, tiny_config

from bertjax.training.state import EmaTrainState, TrainState

DECAY = 0.25


@pytest.fixture(scope='module')
def run():
    return Run(tiny_config(model=NO_DROPOUT, ema_decay=DECAY, warmup_fraction=0.0))


def test_the_average_agrees_with_numpy(run):
    """The decay is 1/10, 2/11 and then 1/4: it depends on the applied updates, without skipped steps."""
    state = host(run.init())
    assert isinstance(state, EmaTrainState)
    jax.tree.map(np.testing.assert_array_equal, state.ema, state.params)
    expected = jax.tree.map(np.float64, state.params)
    for step in range(5):
        broken = step == 1
        params = jax.tree.map(np.array, state.params)
        if broken:
            params['mlm']['dense']['kernel'][0, 0] = np.nan
        new = host(run.compiled(run.place(state.replace(params=params)), run.batch(step))[0])
        if broken:
            jax.tree.map(np.testing.assert_array_equal, new.ema, state.ema)
            new = new.replace(params=state.params)
        else:
            applied = step - (step > 1)
            decay = min(DECAY, (1 + applied) / (10 + applied))
            expected = jax.tree.map(lambda e, p, d=decay: d * e + (1 - d) * np.float64(p), expected, new.params)
        state = new
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), state.ema, expected)
    assert (int(state.step), int(state.skipped)) == (5, 1)
    assert state.eval_params is state.ema
    assert np.abs(state.ema['mlm']['dense']['kernel'] - state.params['mlm']['dense']['kernel']).max() > 1e-4


def test_given_initial_weights_start_the_average(run):
    """The average is a copy, because the train step donates the buffers of both trees."""
    params = jax.tree.map(lambda x: x + 1, host(run.init()).params)
    for state in (run.setup.create_from(params, 0), run.init().with_params(run.place(host(run.init())).params)):
        jax.tree.map(np.testing.assert_array_equal, host(state.ema), host(state.params))
        run.steps(state, 0, 1)


def test_without_an_average_the_state_has_no_average(plain_run):
    state = plain_run.setup.state
    assert type(state) is TrainState and state.eval_params is state.params
    names = {path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(state)}
    assert names == {'step', 'params', 'opt_state', 'skipped', 'skipped_in_row'}
