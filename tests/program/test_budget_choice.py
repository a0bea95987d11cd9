"""Tests of the model, the batch and the vocabulary that a budget chooses; test_budget.py runs the program."""

import dataclasses

import pytest
from test_budget import data_mesh

from bertjax.config.recipes import budget_config, vocabulary_size
from bertjax.errors import UserError
from bertjax.pretrain.budget import make_plan
from bertjax.pretrain.budget_choice import choose_batch_size, split_batch
from bertjax.pretrain.budget_plan import BudgetPlan
from bertjax.pretrain.settings import pretraining_settings


@pytest.mark.slow
def test_the_size_follows_from_the_operations(tmp_path, monkeypatch):
    """More operations give a larger model, unless a flag sets the size."""
    mesh, plans = data_mesh(1), []
    for number, budget in enumerate(('1e9', '1e15', '1e19')):
        settings = pretraining_settings(budget_config(budget))
        plans.append(make_plan(settings, tmp_path / str(number), mesh, ()))
    widths = [plan.model['width'] for plan in plans]
    assert widths == sorted(set(widths)) and widths[0] == 128
    few = pretraining_settings(budget_config('1e3'))  # the smallest model needs more for one token
    assert make_plan(few, tmp_path / 'few', mesh, ()).model['width'] == 128
    assert make_plan(settings, tmp_path / 'set', mesh, ('model.width', 'model.dtype')).model == {}
    monkeypatch.setattr('bertjax.pretrain.budget_choice.step_seconds', lambda settings, mesh: 1e-6)
    fast = {'budget': '4s', 'batch_size': 1, 'seq_len': 8, 'max_predictions': 1}
    plan = make_plan(dataclasses.replace(settings, **fast), tmp_path / 'fast', mesh, ('model.width', 'model.dtype'))
    assert plan.warmup == 100  # 5 % of the steps that fit into four seconds if there is hardly anything to compute


def test_the_batch_grows_with_the_budget(monkeypatch):
    one, eight = data_mesh(1), data_mesh(8)
    assert [choose_batch_size(64, 8_000 * n, 64, one, 8_000) for n in (10, 64, 65, 200, 1e6)] == [64, 64, 128, 256, 512]
    assert choose_batch_size(64, 1e9, 64, eight, 4_000) == 512
    assert choose_batch_size(64, 1e9, 128, one, 4_000) == 256
    monkeypatch.setattr('bertjax.pretrain.budget_choice.is_cpu', lambda mesh: False)
    assert [choose_batch_size(64, 1e9, 64, mesh, 4_000) for mesh in (one, eight)] == [256, 2048]


def test_a_batch_on_a_cpu_is_split(monkeypatch):
    """A part has at most 2,048 positions per shard, if the rows can be divided so."""
    settings, plan = pretraining_settings(budget_config('1h')), BudgetPlan('1h', {}, 300, 10, batch_size=512)

    def parts(shards=1, flag_keys=(), plan=plan, **values):
        changed = dataclasses.replace(settings, **values)
        return split_batch(changed, plan, data_mesh(shards), flag_keys).grad_accum_steps

    assert [parts(), parts(8), parts(seq_len=128)] == [16, 2, 32]
    own = dataclasses.replace(plan, batch_size=None)
    assert [parts(plan=own), parts(plan=own, batch_size=48), parts(plan=own, batch_size=72)] == [2, 2, 4]
    assert [parts(plan=own, batch_size=33), parts(8, plan=own, batch_size=8, seq_len=4096)] == [1, 1]
    assert [parts(flag_keys=('grad_accum_steps',)), parts(grad_accum_steps=4)] == [1, 4]
    assert parts(architecture_from='model') == 1
    monkeypatch.setattr('bertjax.pretrain.budget_choice.is_cpu', lambda mesh: False)
    assert parts() == 1


def test_a_plan_keeps_the_batch(tmp_path):
    mesh = data_mesh(1)
    settings, flag_keys = pretraining_settings(budget_config('1e19')), ('model.dtype', 'model.width')
    plan = make_plan(settings, tmp_path / 'new', mesh, flag_keys)
    assert plan.batch_size == 512
    assert f'about {plan.estimate:,} steps of 512 x 64: ' in plan.describe(settings)
    assert plan.apply(settings).resolve_phases(plan.estimate)[-1].batch_size == 512
    unplanned = dataclasses.replace(settings, architecture_from='model')
    assert make_plan(unplanned, tmp_path / 'unplanned', mesh, flag_keys).batch_size is None
    assert make_plan(settings, tmp_path / 'set', mesh, (*flag_keys, 'batch_size')).batch_size is None
    replay = dataclasses.replace(settings, replay=str(tmp_path / 'new'))
    assert make_plan(replay, tmp_path / 'again', mesh, ()) == plan
    with pytest.raises(UserError, match=r'config\.batch_size: found 64, expected 512, as in '):
        make_plan(replay, tmp_path / 'other', mesh, ('batch_size',))


@pytest.mark.parametrize(
    ('budget', 'pieces'),
    [
        *[('5m', 2048), ('301s', 4096), ('30m', 4096), ('31m', 8192), ('8h', 8192), ('9h', 16384)],
        *[('1e13', 2048), ('1e14', 4096), ('3e15', 8192), ('4e15', 16384)],
    ],
)
def test_the_vocabulary_grows_with_the_budget(budget, pieces):
    assert vocabulary_size(budget) == pieces


@pytest.mark.parametrize('budget', ['', '25', '25x', 'm', '0m', '3e', '-3m', '1e999'])
def test_a_budget_is_a_time_or_operations(budget):
    with pytest.raises(UserError, match='a time such as 90s, 25m, 2h or 1d, or operations such as 3e15'):
        vocabulary_size(budget)
