"""Tests of the model, the batch and the vocabulary that a budget chooses; test_budget.py runs the program."""

import dataclasses
import json

import jax
import pytest
from jax.sharding import Mesh

from bertjax.commands import compile
from bertjax.config.recipes import budget_config, vocabulary_size
from bertjax.errors import UserError
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.budget import make_plan
from bertjax.pretrain.budget_choice import choose_batch_size, split_batch
from bertjax.pretrain.budget_plan import BudgetPlan
from bertjax.pretrain.settings import pretraining_settings


def data_mesh(devices: int) -> Mesh:
    return make_mesh({'data': devices, 'fsdp': 1, 'tensor': 1}, jax.local_devices()[:devices])


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


def test_the_expected_loss_of_a_plan_is_described():
    settings = pretraining_settings(budget_config('1h'))
    plan = BudgetPlan('1h', {'num_layers': 3, 'width': 192, 'num_heads': 3, 'mlp_dim': 512}, 2277, 114, batch_size=256)
    # docs/results/budget-60m.json has 3.112.
    assert plan.describe(settings).endswith('; expected held-out MLM loss on English text: about 3.1')
    for pairs, pieces in ((True, 8192), (False, 30_522)):  # another objective, another vocabulary
        other = pretraining_settings(budget_config('1h', pairs))
        other = dataclasses.replace(other, vocab=dataclasses.replace(other.vocab, size=pieces))
        assert plan.describe(other).endswith('to decay')
    short = dataclasses.replace(plan, estimate=900)
    assert short.describe(settings).endswith('to decay')
    assert plan.describe(dataclasses.replace(settings, architecture_from='model')).endswith('to decay')


def test_a_batch_on_a_cpu_is_split(monkeypatch):
    """A part has at most 2,048 positions per shard, if the rows can be divided so."""
    settings, plan = pretraining_settings(budget_config('1h')), BudgetPlan('1h', {}, 300, 10, batch_size=512)

    def parts(shards=1, flag_keys=(), plan=plan, recorded=None, **values):
        changed = dataclasses.replace(settings, **values)
        return split_batch(changed, plan, data_mesh(shards), flag_keys, recorded).grad_accum_steps

    assert [parts(), parts(8), parts(seq_len=128)] == [16, 2, 32]
    own = dataclasses.replace(plan, batch_size=None)
    assert [parts(plan=own), parts(plan=own, batch_size=48), parts(plan=own, batch_size=72)] == [2, 2, 4]
    assert [parts(plan=own, batch_size=33), parts(8, plan=own, batch_size=8, seq_len=4096)] == [1, 1]
    assert [parts(flag_keys=('grad_accum_steps',)), parts(grad_accum_steps=4)] == [1, 4]
    assert parts(architecture_from='model') == 1
    monkeypatch.setattr('bertjax.pretrain.budget_choice.is_cpu', lambda mesh: False)
    assert [parts(), parts(recorded=16), parts(8, recorded=128)] == [1, 16, 1]


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


def test_compile_takes_the_sizes_of_the_plan_or_says_that_the_run_chooses_them(tmp_path, capsys, monkeypatch):
    class StopError(Exception):
        pass

    def stop(settings, topology):
        raise StopError(f'{settings.batch_size} rows, width {settings.model.width}')

    monkeypatch.setattr(compile, 'MemorySearch', stop)
    config = budget_config('5m')
    config.topology = 'v5e:4x4'
    with pytest.raises(StopError, match='16 rows'):
        compile.run(config, str(tmp_path))
    assert 'that no key sets; compile uses 2 layers of width 128, 16 rows' in capsys.readouterr().out
    plan = BudgetPlan('5m', {'width': 192}, 300, 10, batch_size=128)
    plan.save(tmp_path)
    config.replay = str(tmp_path)
    with pytest.raises(UserError, match='found a run whose second phase has not ended'):
        compile.run(config, str(tmp_path / 'new'))
    dataclasses.replace(plan, stable=1, decay=1).save(tmp_path)
    with pytest.raises(StopError, match='128 rows, width 192'):
        compile.run(config, str(tmp_path / 'new'))
    config.replay = ''
    monkeypatch.setattr('bertjax.pretrain.budget.has_checkpoints', lambda folder: True)
    with pytest.raises(StopError, match='128 rows, width 192'):
        compile.run(config, str(tmp_path))
    with pytest.raises(StopError, match='16 rows, width 128'):
        compile.run(config, str(tmp_path), ('batch_size', 'model.width'))
    assert not capsys.readouterr().out
    for text in ('{"budget"', json.dumps(dataclasses.asdict(plan) | {'warmups': 1})):
        (tmp_path / 'budget.json').write_text(text)
        with pytest.raises(UserError, match='no readable plan beside the checkpoints'):
            compile.run(config, str(tmp_path))


@pytest.mark.slow
def test_the_steps_of_a_budget_follow_from_the_time_of_a_real_step(tmp_path, monkeypatch):
    timed = []

    def time_step(settings, mesh):
        timed.append(settings)
        return settings.batch_size * 1e-3

    monkeypatch.setattr('bertjax.pretrain.budget_choice.product_rate', lambda mesh, dtype: 1e12)
    settings = pretraining_settings(budget_config('30m'))
    with monkeypatch.context() as patch:
        patch.setattr('bertjax.pretrain.budget_choice.step_seconds', time_step)
        plan = make_plan(settings, tmp_path / 'long', data_mesh(1), ())
        short = make_plan(dataclasses.replace(settings, budget='10m'), tmp_path / 'short', data_mesh(1), ())
        for budget, keys in (('1e15', {}), ('30m', {'architecture_from': 'model'})):
            make_plan(dataclasses.replace(settings, budget=budget, **keys), tmp_path / budget, data_mesh(1), ())
    used, _ = timed
    assert used.model.width == plan.model['width'] and used.batch_size == used.grad_accum_steps * 32
    # 1.8 million rows: 512 is the smallest batch with at most 4,000 steps.
    assert (plan.batch_size, plan.estimate, plan.warmup) == (512, 3516, 176)
    assert (short.batch_size, short.estimate) == (256, 2344)
    small = dataclasses.replace(settings.model, num_layers=1, width=32, num_heads=2, mlp_dim=64)
    settings = dataclasses.replace(settings, model=small, batch_size=12)
    flags = ('model.width', 'batch_size')
    with pytest.raises(UserError, match=r'config\.batch_size: found 12'):
        make_plan(settings, tmp_path / 'uneven', data_mesh(8), flags)
    plan = make_plan(settings, tmp_path / 'small', data_mesh(2), flags)
    assert 180 < plan.estimate < 900_000  # a step takes between 2 ms, the assumed minimum, and 10 s


def test_a_budget_of_any_length_is_refused_in_one_line(tmp_path):
    settings = pretraining_settings(budget_config('9' * 290 + 'e9'))
    mesh = data_mesh(1)
    with pytest.raises(UserError, match='which allows too many steps, expected at most 536,870,911 steps; lower it'):
        make_plan(settings, tmp_path, mesh, ('model.dtype',))
    settings = dataclasses.replace(settings, budget='9' * 400 + 'm')
    with pytest.raises(UserError, match='which allows too many steps'):
        make_plan(settings, tmp_path, mesh, ('model.dtype',))
