"""The results and metrics of the train step, and steps that are not finite."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from train_fakes import B, P, RandomExamples, Run, constant_rate, host, loss_of, setup_of, tiny_config

from bertjax.config.run import Optimizer
from bertjax.losses import PRETRAINING, Objective, pretraining_losses
from bertjax.model.config import BertConfig
from bertjax.optim.optimizers import make_optimizer
from bertjax.training.setup import PhaseSettings
from bertjax.training.step import make_forward, make_train_step


def assert_bits_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def norm(tree):
    return np.sqrt(sum(np.square(np.asarray(x, np.float64)).sum() for x in jax.tree.leaves(tree)))


def unequal_batch(run):
    """Makes a batch whose four microbatches have unequal numbers of masks and pairs.

    Microbatch i has rows i, i + 4, … Microbatch 0 has one mask in total, microbatch 3 has all masks, and the pairs of
    microbatch 1 have weight 0.
    """
    rows = RandomExamples(seed=9).batch(np.arange(B))
    weights, part = rows['masked_weights'], np.arange(B) % 4
    weights[:] = 0
    weights[0, 0] = 1
    weights[part == 1, :2] = 1
    weights[part == 3] = 1
    rows['masked_positions'][part == 3] = np.arange(1, P + 1)
    rows['masked_ids'][part == 3] = 50
    rows['nsp_weights'][part == 1] = 0
    return run.put(rows)


@pytest.fixture(scope='module')
def learned(plain_run, fresh):
    """The state after three steps, whose moments are not zero."""
    return host(plain_run.steps(plain_run.place(fresh), 0, 3)[0])


@pytest.fixture(scope='module')
def grads(plain_run, learned):
    """The gradient at `learned` of the sum of both mean losses of batch 3, computed without the train step."""
    batch = plain_run.batch(3).arrays

    def objective(params):
        outputs = make_forward(plain_run.setup.module, PRETRAINING)(params, batch)
        sums = pretraining_losses(outputs, batch)
        return sums['mlm_loss'][0] / sums['mlm_loss'][1] + sums['nsp_loss'][0] / sums['nsp_loss'][1]

    return host(jax.jit(jax.grad(objective))(learned.params))


def test_accumulation_equals_the_large_batch(plain_run, accumulating_run, learned):
    results = {}
    for name, run in (('whole', plain_run), ('parts', accumulating_run)):
        state, metrics = run.compiled(run.place(learned), unequal_batch(run))
        results[name] = host(state), host(metrics)
    (expected_state, expected), (state, metrics) = results['whole'], results['parts']
    for name, (value, weight) in expected['sums'].items():
        np.testing.assert_allclose(metrics['sums'][name][0], value, rtol=2e-6, err_msg=name)
        assert metrics['sums'][name][1] == weight
    assert expected['sums']['mlm_loss'][1] == 1 + 8 + 16
    assert expected['sums']['nsp_loss'][1] == 12
    for name in ('grad_norm', 'update_norm', 'param_norm', 'learning_rate', 'tokens'):
        np.testing.assert_allclose(metrics['scalars'][name], expected['scalars'][name], rtol=1e-5, err_msg=name)
    for x, y in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected_state.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6, rtol=0)
    assert int(state.opt_state[1].count) == int(expected_state.opt_state[1].count) == 4


def test_the_reported_norms_are_correct(plain_run, learned, grads):
    batch = plain_run.batch(3)
    new, metrics = plain_run.compiled(plain_run.place(learned), batch)
    scalars = host(metrics)['scalars']
    np.testing.assert_allclose(scalars['grad_norm'], norm(grads), rtol=1e-5)
    assert scalars['grad_norm'] > 1  # before clipping
    np.testing.assert_allclose(scalars['param_norm'], norm(new.params), rtol=1e-6)
    moved = jax.tree.map(lambda n, o: np.asarray(n, np.float64) - o, host(new.params), learned.params)
    np.testing.assert_allclose(scalars['update_norm'], norm(moved), rtol=1e-4)
    assert scalars['tokens'] == batch.arrays['attention_mask'].sum()
    assert loss_of(metrics) > 0
    assert {name: x.dtype for name, x in scalars.items()} == {
        'grad_norm': np.float32, 'param_norm': np.float32, 'update_norm': np.float32, 'learning_rate': np.float32,
        'skipped': np.int32, 'skipped_in_row': np.int32, 'tokens': np.int32,
    }  # fmt: skip


def test_the_moments_use_the_clipped_gradient(plain_run, learned, grads):
    new, _ = plain_run.compiled(plain_run.place(learned), plain_run.batch(3))
    factor = 1 / norm(grads)
    assert factor < 1
    old = jax.tree.leaves(learned.opt_state[1].mu)
    for mu, m, g in zip(jax.tree.leaves(new.opt_state[1].mu), old, jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(mu, 0.9 * m + 0.1 * factor * g, rtol=1e-3, atol=1e-7)


def test_the_logged_learning_rate_is_the_applied_one(plain_run, fresh):
    """With a warm-up of 50 steps to 1e-2, the first update has rate 0, and the second has 1e-2 / 50."""
    state, (first,) = plain_run.steps(plain_run.place(fresh), 0, 1)
    assert first['scalars']['learning_rate'] == 0
    assert first['scalars']['update_norm'] == 0
    assert_bits_equal(host(state.params), fresh.params)
    assert int(state.step) == int(state.opt_state[1].count) == 1
    _, (second, third) = plain_run.steps(state, 1, 2)
    np.testing.assert_allclose(second['scalars']['learning_rate'], 1e-2 / 50, rtol=1e-6)
    np.testing.assert_allclose(third['scalars']['learning_rate'], 2e-2 / 50, rtol=1e-6)
    assert second['scalars']['update_norm'] > 0


def test_a_repeated_batch_is_learned(plain_run, fresh):
    state, batch, losses = plain_run.place(fresh), plain_run.batch(0), []
    for _ in range(50):
        state, metrics = plain_run.compiled(state, batch)
        losses.append(loss_of(metrics))
    assert losses[0] > np.log(200)
    assert losses[-1] < 0.5 * losses[0]


class Toy(nn.Module):
    """A minimal model for the train step, whose logits are its parameters."""

    config: BertConfig = BertConfig()
    smallest_inputs = ((1, 1),) * 4

    @nn.compact
    def __call__(self, input_ids, segment_ids, attention_mask, masked_positions, *, dropout=None):
        kernel = self.param('kernel', nn.initializers.normal(), (8,))
        return {'mlm_logits': jnp.broadcast_to(kernel, (*masked_positions.shape, 8))}


def toy_step(steps, rate):
    """Takes one step of a toy run; returns the states before and after, and the scalars."""
    rows = {name: jnp.asarray(x) % 8 for name, x in RandomExamples().batch(np.arange(4)).items()}
    optimizer = make_optimizer(**vars(Optimizer('adamw', weight_decay=0.0, clip_norm=0.0)))
    setup = setup_of(Toy(), PRETRAINING, optimizer)
    step = make_train_step(setup)
    before = setup.create(0).replace(step=jnp.int32(steps))
    after, metrics = jax.jit(step)(before, rows, jnp.uint32(0), constant_rate(rate), jnp.uint32(0))
    return before, after, host(metrics['scalars'])


def test_the_schedule_counts_from_the_start_of_the_phase():
    phase = PhaseSettings(1, 1000, 1100, B, 1, 'linear', warmup_fraction=0.5, power=1.0)
    part = dataclasses.replace(phase, first_step=1020, schedule_steps=(1000, 1100))
    for schedule in (phase.make_schedule(2.0), part.make_schedule(2.0)):
        assert [float(schedule(step)) for step in (1000, 1025, 1050, 1075)] == [0, 1, 2, 1]


def test_an_update_that_overflows_is_skipped():
    """Loss and gradient are finite, but the squared norm of the update overflows float32."""
    before, after, scalars = toy_step(10, rate=1e30)
    assert 0 < scalars['grad_norm'] < 10
    assert_bits_equal(after.params, before.params)
    assert (int(after.skipped), int(after.opt_state[1].count)) == (1, 0)
    _, after, _ = toy_step(10, rate=1e-2)  # the same step with a normal learning rate
    assert (int(after.skipped), int(after.opt_state[1].count)) == (0, 1)


def set_nan(state):
    """Sets one element of one parameter to NaN."""
    params = jax.tree.map(np.array, state.params)
    params['mlm']['dense']['kernel'][0, 0] = np.nan
    return state.replace(params=params)


def set_huge(state):
    """Makes parameters for which the loss is finite, but the squared gradient norm overflows."""
    params = jax.tree.map(np.array, state.params)
    params['mlm']['norm']['scale'][:] = 1e25
    return state.replace(params=params)


@pytest.mark.parametrize('which', ['plain_run', 'accumulating_run'])
@pytest.mark.parametrize('break_it', [set_nan, set_huge])
def test_a_step_that_is_not_finite_changes_only_step_and_counters(request, learned, which, break_it):
    run = request.getfixturevalue(which)
    broken = break_it(learned)
    finite_loss = break_it is set_huge
    state = run.place(broken)
    for i in range(1, 4):
        state, metrics = run.compiled(state, run.batch(i))
        now = host(state)
        assert_bits_equal(now.params, broken.params)
        assert_bits_equal(now.opt_state, broken.opt_state)
        assert int(now.opt_state[1].count) == 3
        assert (int(now.step), int(now.skipped), int(now.skipped_in_row)) == (3 + i, i, i)
        assert metrics['scalars']['update_norm'] == 0
        assert np.isfinite(loss_of(metrics)) == finite_loss
        assert (metrics['scalars']['skipped'], metrics['scalars']['skipped_in_row']) == (i, i)


def test_training_continues_after_a_skipped_step(plain_run, learned):
    state, _ = plain_run.compiled(plain_run.place(set_nan(learned)), plain_run.batch(3))
    assert int(state.skipped_in_row) == 1
    repaired = plain_run.place(host(state).replace(params=learned.params))
    state, metrics = plain_run.compiled(repaired, plain_run.batch(4))
    assert (int(state.step), int(state.skipped), int(state.skipped_in_row)) == (5, 1, 0)
    assert int(state.opt_state[1].count) == 4  # the number of applied updates
    assert metrics['scalars']['update_norm'] > 0
    # The learning rate depends on the step, not on the number of updates.
    np.testing.assert_allclose(metrics['scalars']['learning_rate'], 1e-2 * 4 / 50, rtol=1e-6)


def test_a_batch_without_weights_does_not_divide_by_zero(plain_run, learned):
    rows = RandomExamples().batch(np.arange(B))
    rows['masked_weights'][:] = 0
    rows['nsp_weights'][:] = 0
    state, metrics = plain_run.compiled(plain_run.place(learned), plain_run.put(rows))
    assert int(state.skipped) == 0
    assert metrics['scalars']['grad_norm'] == 0
    assert metrics['sums']['mlm_loss'] == (0, 0)


@pytest.mark.parametrize('grad_accum_steps', [1, 2])
def test_rows_with_small_weights_still_have_a_mean(grad_accum_steps):
    """The windows of a long record have a total weight of 1 and may be in two batches."""

    class Squared(nn.Module):
        config: BertConfig = BertConfig()
        smallest_inputs = ((1,),)

        @nn.compact
        def __call__(self, labels, *, dropout=None):
            return self.param('kernel', nn.initializers.ones, ()) - labels

    def losses(outputs, batch):
        return {'loss': ((jnp.square(outputs) * batch['weights']).sum(), batch['weights'].sum())}

    objective = Objective(('labels',), losses, lambda batch: {'loss': batch['weights'].sum()})
    setup = setup_of(Squared(), objective, optax.sgd(1.0))
    step = jax.jit(make_train_step(setup, grad_accum_steps))

    def grad_norm(weights):
        batch = {'labels': jnp.arange(4.0), 'weights': jnp.float32(weights), 'attention_mask': jnp.ones((4, 1))}
        numbers = (jnp.uint32(0), constant_rate(1.0), jnp.uint32(0))
        return float(step(setup.create(0), batch, *numbers)[1]['scalars']['grad_norm'])

    assert grad_norm([1, 1, 0, 0]) == grad_norm([0.125, 0.125, 0, 0]) == 1.0  # two rows of label 0, none of label 1
    assert grad_norm([0, 0, 0, 0]) == 0


def test_dropout_depends_only_on_the_example_number(dropout_run, fresh):
    rows = RandomExamples().batch(np.arange(B))

    def loss_of_numbers(first, step=0):
        before = dropout_run.place(fresh.replace(step=np.int32(step)))
        return loss_of(dropout_run.compiled(before, dropout_run.put(rows, first))[1])

    losses = [loss_of_numbers(first) for first in (0, B, 2 * B, 2**32 - 4)]
    assert len(set(losses)) == 4
    assert losses[0] == loss_of_numbers(0, step=7) == loss_of_numbers(2**32)


@pytest.mark.slow
def test_dropout_of_a_row_does_not_depend_on_batch_and_microbatch(dropout_run, fresh):
    whole = dropout_run.steps(dropout_run.place(fresh), 0, 2)[1]
    for changes in ({'batch_size': B // 2, 'grad_accum_steps': 1}, {'grad_accum_steps': 4}):
        run = Run(tiny_config(**changes))
        rows = run.config.batch_size
        assert run.phase.batch_size == rows
        sums = []
        for first in range(0, B, rows):
            part = run.put(RandomExamples().batch(np.arange(rows) + first), first)
            sums.append(host(run.compiled(run.place(fresh), part)[1])['sums']['mlm_loss'])
        np.testing.assert_allclose(np.sum(sums, 0), whole[0]['sums']['mlm_loss'], rtol=1e-6)


def test_the_same_seed_gives_the_same_bits(dropout_run, fresh):
    states = [host(dropout_run.steps(dropout_run.place(fresh), 0, 3)[0]) for _ in range(2)]
    assert_bits_equal(*states)


@pytest.mark.slow
def test_bfloat16_computation_keeps_float32_state(dropout_run, fresh):
    run = Run(tiny_config(model={'dtype': 'bfloat16'}, grad_accum_steps=2))
    state, rows = run.steps(run.place(fresh), 0, 3)
    floating = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert len(floating) > 60
    assert {x.dtype for x in floating} == {np.dtype(np.float32)}
    assert {x.dtype for pair in rows[0]['sums'].values() for x in pair} == {np.dtype(np.float32)}
    assert rows[0]['scalars']['grad_norm'].dtype == np.float32
    assert 'bf16' in run.program.as_text()
    assert 'bf16' not in dropout_run.program.as_text()
    # Weights are exact counts; the losses differ by rounding.
    full = dropout_run.steps(dropout_run.place(fresh), 0, 1)[1][0]
    assert rows[0]['sums']['mlm_loss'][1] == full['sums']['mlm_loss'][1]
    np.testing.assert_allclose(loss_of(rows[0]), loss_of(full), rtol=2e-2)


def test_resetting_the_optimizer_keeps_the_rest(plain_run, learned):
    """A phase with reset_optimizer starts with this state."""
    state = host(plain_run.setup.reset_optimizer(plain_run.place(learned)))
    assert_bits_equal(state.params, learned.params)
    assert int(state.step) == 3
    assert norm(learned.opt_state[1].mu) > 0
    assert norm(state.opt_state[1].mu) == norm(state.opt_state[1].nu) == int(state.opt_state[1].count) == 0
