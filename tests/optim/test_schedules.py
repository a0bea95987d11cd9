"""Tests learning rate schedules against their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.optim.schedules import SCHEDULES, check_schedule, make_schedule

PEAK, STEPS, WARMUP = 3e-4, 200, 0.1  # 20 steps of warm-up and 180 of decay.


def rates(name, steps=STEPS, **options):
    schedule = make_schedule(name, **{'peak': PEAK, 'steps': steps, 'warmup_fraction': WARMUP, **options})
    return np.asarray(jax.jit(jax.vmap(schedule))(np.arange(steps + 1)), np.float64)


# The fraction of the peak at step 110, in the middle of the decay.
HALF_WAY = {'linear': 0.5, 'polynomial': 0.5**0.5, 'cosine': 0.5, 'constant': 1.0}


@pytest.mark.parametrize('name', HALF_WAY)
def test_values_at_the_start_the_peak_the_middle_and_the_end(name):
    values = rates(name, power=0.5)
    assert values[0] == 0
    np.testing.assert_allclose(values[:20], PEAK * np.arange(20) / 20, rtol=1e-6)
    np.testing.assert_allclose(values[20], PEAK, rtol=1e-6)
    np.testing.assert_allclose(values[110], PEAK * HALF_WAY[name], rtol=1e-5)
    np.testing.assert_allclose(values[200], PEAK if name == 'constant' else 0, atol=1e-10)


@pytest.mark.parametrize(
    ('name', 'formula'),
    [
        ('linear', lambda done: 1 - done),
        ('polynomial', lambda done: (1 - done) ** 0.5),
        ('cosine', lambda done: 0.5 * (1 + math.cos(math.pi * done))),
        ('constant', lambda done: 1.0),
    ],
)
def test_the_decay_follows_its_formula(name, formula):
    expected = [PEAK * formula((step - 20) / 180) for step in range(20, 201)]
    np.testing.assert_allclose(rates(name, power=0.5)[20:], expected, rtol=1e-4, atol=1e-10)


@pytest.mark.parametrize(
    ('decay', 'formula'),
    [
        ('sqrt', lambda x: 1 - math.sqrt(x)),
        ('linear', lambda x: 1 - x),
        ('cosine', lambda x: 0.5 * (1 + math.cos(math.pi * x))),
    ],
)
def test_wsd_is_constant_until_its_decay(decay, formula):
    values = rates('wsd', decay=decay, decay_fraction=0.25)
    np.testing.assert_allclose(values[:20], PEAK * np.arange(20) / 20, rtol=1e-6)
    np.testing.assert_allclose(values[20:150], PEAK, rtol=1e-6)
    expected = [PEAK * formula((step - 150) / 50) for step in range(150, 201)]
    np.testing.assert_allclose(values[150:], expected, rtol=1e-4, atol=1e-10)


def test_wsd_equals_the_schedule_of_transformers():
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    transformers = pytest.importorskip('transformers', reason='compares with its schedules')
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = transformers.get_wsd_schedule(
        optimizer, num_warmup_steps=20, num_decay_steps=50, num_training_steps=STEPS, decay_type='1-sqrt'
    )
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(rates('wsd', decay_fraction=0.25)[:STEPS], expected, rtol=1e-5, atol=1e-12)


def test_linear_equals_the_schedule_of_transformers():
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    transformers = pytest.importorskip('transformers', reason='compares with its schedules')
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    theirs = transformers.get_linear_schedule_with_warmup(optimizer, num_warmup_steps=20, num_training_steps=STEPS)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(rates('linear')[:STEPS], expected, rtol=1e-5, atol=1e-12)


def test_slanted_triangular_is_equation_3_of_ulmfit():
    ratio, cut = 32, math.floor(STEPS * WARMUP)
    expected = []
    for t in range(STEPS + 1):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / WARMUP - 1))
        expected.append(PEAK * (1 + p * (ratio - 1)) / ratio)
    np.testing.assert_allclose(rates('slanted_triangular'), expected, rtol=1e-5)


@pytest.mark.parametrize('name', SCHEDULES)
def test_schedules_are_continuous_and_never_above_the_peak(name):
    values = rates(name, steps=20_000, decay='linear', decay_fraction=0.5)
    # The polynomial decay is steep at the end, so the last hundredth is excluded.
    assert np.abs(np.diff(values[:-200])).max() <= PEAK * 1.01 / 2000
    assert values.max() == pytest.approx(PEAK, rel=1e-6)
    assert values.min() >= 0


@pytest.mark.parametrize('name', SCHEDULES)
def test_no_warmup_starts_at_the_peak(name):
    assert rates(name, warmup_fraction=0.0)[0] == pytest.approx(PEAK, rel=1e-6)


@pytest.mark.parametrize('name', SCHEDULES)
def test_a_phase_of_one_step_has_a_rate(name):
    values = rates(name, steps=1)
    assert np.isfinite(values).all()
    assert values[0] == pytest.approx(PEAK, rel=1e-6)


def test_the_rate_is_zero_after_the_end():
    schedule = make_schedule('polynomial', peak=PEAK, steps=10, warmup_fraction=0.0, power=0.5)
    assert float(schedule(jnp.int32(1000))) == 0.0


def test_an_overlap_of_warmup_and_decay_is_refused():
    with pytest.raises(UserError, match=r'config\.schedule\.decay_fraction'):
        check_schedule('wsd', warmup_fraction=0.5, decay_fraction=0.6)
