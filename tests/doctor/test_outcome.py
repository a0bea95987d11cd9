"""Tests the lines of `bertjax doctor` about problems that users of other systems reported."""

import copy
import json
import pathlib
from typing import Any

import pytest

import bertjax
from bertjax.config.plain import to_plain
from bertjax.config.recipes import budget_config, finetuning_config, phase, pretraining_config
from bertjax.doctor import outcome
from bertjax.doctor.check import FAIL, OK, WARN, Check
from bertjax.doctor.text import learning_obstacles
from bertjax.pretrain.budget_plan import BudgetPlan
from bertjax.pretrain.chance_baselines import ChanceBaselines
from bertjax.report.overview import overview_section
from bertjax.report.run_record import Run
from bertjax.training.health.goodput_clock import TIMES


def train_row(step: int, **values: Any) -> dict[str, Any]:
    row = {'step': step, 'split': 'train', 'loss': 5.0, 'skipped': 0, 'data_wait': 0.01}
    return {**row, 'param_norm': 40.0, 'update_norm': 1e-3, **values}


def heldout_row(step: int, loss: float) -> dict[str, Any]:
    return {'step': step, 'split': 'heldout', 'phase': 0, 'loss': loss, 'mlm_loss': loss}


def pretraining(folder: pathlib.Path, rows: list[dict[str, Any]], **changes: Any) -> Run:
    config = to_plain(pretraining_config('tiny', steps=1000, **changes))
    return Run(folder, 'configs/pretrain_tiny.py', config, True, rows)


def test_keys_of_a_phase_continue_a_run(tmp_path: pathlib.Path):
    run = pretraining(tmp_path, [], phases=(phase(steps='50%'), phase(steps='50%', batch_size=64)))
    config = copy.deepcopy(run.config)
    config['phases'][1]['batch_size'], config['seq_len'] = 32, 64
    continued = outcome.with_set_keys(run, config, (), ('phases[1].batch_size',))
    assert [part['batch_size'] for part in continued['phases']] == [0, 32]
    assert continued['seq_len'] == run.config['seq_len'] and run.config['phases'][1]['batch_size'] == 64


def test_more_epochs_continue_a_run_in_its_own_steps(tmp_path: pathlib.Path):
    config = to_plain(finetuning_config('glue', task='rte'))
    run = Run(tmp_path, 'configs/glue.py', config | {'steps': 468, 'batch_size': 16}, True, [])
    assert outcome.with_set_keys(run, config | {'epochs': 5.0}, (), ('epochs',))['steps'] == 780
    # The argument of the recipe may also set a key that changes the batches.
    assert outcome.with_set_keys(run, config | {'seq_len': 256}, ('seq_len',), ())['seq_len'] == 256


def test_the_argument_of_a_recipe_does_not_extend_a_run(tmp_path: pathlib.Path):
    """The argument sets the steps, and the optimizer, which no run may change."""
    recipe = bertjax.recipe('pretrain_tiny:adam')
    config, keys = to_plain(recipe.config), recipe.command_line_keys
    run = pretraining(tmp_path, [])
    continued = outcome.with_set_keys(run, config, keys, ())
    assert {'steps', 'optimizer.name'} < keys and config['steps'] == 1500
    assert continued['steps'] == 1000 and continued['optimizer']['name'] == config['optimizer']['name']
    assert outcome.with_set_keys(run, config, keys, ('steps',))['steps'] == 1500


def test_choices_of_a_budget_are_kept_unless_a_flag_sets_them(tmp_path: pathlib.Path):
    config = to_plain(budget_config('3e12'))
    run = Run(tmp_path, 'configs/budget.py:3e12', config | {'batch_size': 32, 'steps': 100}, True, [])
    keys = ('batch_size', 'budget')
    assert outcome.with_set_keys(run, config, keys, ())['batch_size'] == 32
    assert outcome.with_set_keys(run, config, keys, ('batch_size',))['batch_size'] == config['batch_size'] == 16
    (check,) = outcome.resume(run, 9, outcome.with_set_keys(run, config | {'budget': '4e12'}, keys, ()), at_work=False)
    assert check.status == FAIL and 'config.budget: found 4e12, expected 3e12' in check.message


def only(checks) -> Check:
    """Returns the only check, after a test that its text is one line and that a problem has a fix."""
    (check,) = checks
    assert '\n' not in check.message + check.fix and (check.fix or check.status == OK)
    return check


@pytest.mark.parametrize(
    ('key', 'value', 'status', 'text'),
    [
        ('batch_size', 16, FAIL, 'config.batch_size: found 16, expected 32'),
        ('max_padded_lengths', 3, WARN, 'max_padded_lengths: 8 -> 3'),
        ('seq_len', 64, WARN, 'seq_len: 128 -> 64'),
        ('data', '/new', WARN, 'data:  -> /new'),
        ('learning_rate', 1e-4, OK, 'learning_rate: 2e-05 -> 0.0001'),
    ],
)
def test_keys_that_change_the_rows_of_a_fine_tuning(tmp_path, key: str, value: Any, status: str, text: str):
    config = to_plain(finetuning_config('glue', task='rte')) | {'steps': 72, 'max_padded_lengths': 8}
    run = Run(tmp_path, 'configs/glue.py', config, True, [])
    check = only(outcome.resume(run, 24, config | {key: value}, at_work=False))
    assert check.status == status and text in check.message


@pytest.mark.parametrize(('patience', 'status'), [(2, FAIL), (3, FAIL), (4, OK), (0, OK)])
def test_only_a_higher_patience_continues_a_run_that_patience_ended(tmp_path, patience: int, status: str):
    config = to_plain(finetuning_config('glue', task='rte')) | {'steps': 72, 'patience': 3}
    (tmp_path / 'results.json').write_text(json.dumps({'splits': {}, 'steps': 72, 'stopped_at': 24}))
    run = Run(tmp_path, 'configs/glue.py', config, True, [])
    check = only(outcome.resume(run, 24, config | {'learning_rate': 1e-4, 'patience': patience}, at_work=False))
    assert check.status == status and 'learning_rate' in check.message


CLEAN = {
    'duplicate_documents': 0, 'documents_read': 100, 'duplicate_lines': 0, 'lines': 900, 'unknown_rate': 0.0,
    'neighbour_likeness': 20.0, 'neighbour_likeness_within': 1.6, 'pieces_per_word': 1.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ('facts', 'why', 'fix'),
    [
        ({'duplicate_documents': 40}, '40% of the documents are copies', 'drop_duplicates=True'),
        ({'duplicate_lines': 500}, '56% of the lines are copies', 'remove the repeated lines'),
        ({'neighbour_likeness': 0.9}, 'the sentences are shuffled', 'in order'),
        ({'neighbour_likeness_within': 1.0}, 'the sentences are shuffled', 'in order'),
        ({'unknown_rate': 0.2}, '20% of the tokens are [UNK]', 'trained on this text'),
        (
            {'pieces_per_word': 2.6},
            'cuts words into 2.6 pieces on average',
            "if the vocabulary was trained on this text; else train one on it (--config.tokenizer='')",
        ),
        ({}, 'the text shows no reason', '--config.learning_rate=0.0002 or 5e-05'),
    ],
)
def test_a_loss_that_is_stuck_near_7(tmp_path: pathlib.Path, monkeypatch, facts: dict, why: str, fix: str):
    """The message names the cause in the text (google-research/bert#746, huggingface/transformers#3983)."""
    monkeypatch.setattr(outcome, 'read_chance_baselines', lambda folder: ChanceBaselines(unigram=7.05))
    monkeypatch.setattr(outcome, '_obstacles', lambda run: learning_obstacles(CLEAN | facts))
    run = pretraining(tmp_path, [heldout_row(0, 10.4), heldout_row(1000, 7.03)])
    check = only(outcome.mlm_loss(run))
    assert check.status == FAIL and why in check.message and fix in check.fix
    assert '7.030 held out at step 1,000; a model without context can reach 7.050' in check.message


def test_a_loss_that_fell_rose_or_is_from_a_young_run(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(outcome, 'read_chance_baselines', lambda folder: ChanceBaselines(unigram=7.05))
    monkeypatch.setattr(outcome, '_obstacles', lambda run: learning_obstacles(CLEAN))
    assert only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(1000, 6.6)]))).status == OK
    rose = only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(500, 6.5), heldout_row(1000, 7.1)])))
    assert rose.status == FAIL and 'its lowest value was 6.500' in rose.message and 'learning_rate=5e-05' in rose.fix
    young = only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(100, 7.1)])))
    assert young.status == WARN and '25,600 examples' in young.message and 'train longer (config.steps)' in young.fix
    phases = (phase(steps='5%', batch_size=32), phase(steps='95%', batch_size=512))
    young = only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(100, 7.1)], phases=phases)))
    assert '27,200 examples' in young.message
    young = only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(100, 7.1)], budget='5m')))
    assert 'train longer (config.budget)' in young.fix
    assert not list(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(0, 10.4)])))


def test_several_causes_are_in_one_line(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(outcome, 'read_chance_baselines', lambda folder: ChanceBaselines(unigram=7.05))
    facts = CLEAN | {'duplicate_documents': 40, 'unknown_rate': 0.2}
    monkeypatch.setattr(outcome, '_obstacles', lambda run: learning_obstacles(facts))
    check = only(outcome.mlm_loss(pretraining(tmp_path, [heldout_row(1000, 7.03)])))
    assert check.message.endswith(': 40% of the documents are copies and 20% of the tokens are [UNK]')
    assert ', use a vocab' in check.fix


@pytest.mark.parametrize(
    ('rows', 'status', 'found'),
    [
        ([train_row(10), train_row(20)], OK, 'every step was finite'),
        ([train_row(10), train_row(20, skipped=2)], WARN, '2 steps were not finite, the first after step 10'),
        ([train_row(10), train_row(20, skipped=3)], FAIL, 'step 10, including recent steps'),
        ([train_row(10), train_row(1000, skipped=3)], WARN, 'the first after step 10'),
        ([train_row(10), train_row(20, skipped=1, loss=None)], FAIL, '1 step was not finite, the first after step 10'),
    ],
)
def test_not_a_number(tmp_path: pathlib.Path, rows: list[dict], status: str, found: str):
    """The fix is a lower learning rate (NVIDIA/DeepLearningExamples#1135)."""
    check = only(outcome.not_finite(pretraining(tmp_path, rows)))
    assert check.status == status and found in check.message
    assert status == OK or '--config.learning_rate=5e-05' in check.fix


def test_a_run_that_patience_ended_is_finished(tmp_path: pathlib.Path):
    run = pretraining(tmp_path, [train_row(10), train_row(20, skipped=3)])
    (tmp_path / 'results.json').write_text('{"splits": {}, "stopped_at": 20}')
    assert only(outcome.not_finite(run)).status == WARN
    assert only(outcome.progress(run, at_work=False)).message == 'finished, step 20 of 1,000'


def test_not_a_number_without_clipping_suggests_clipping(tmp_path: pathlib.Path):
    run = pretraining(tmp_path, [train_row(10, skipped=1)])
    run.config['optimizer']['clip_norm'] = 0.0
    assert only(outcome.not_finite(run)).fix == '--config.optimizer.clip_norm=1'


def test_slow_input_is_reported(tmp_path: pathlib.Path):
    waits = [0.9, 0.3, 0.35, 0.3]  # The first row includes the start.
    check = only(outcome.slow_input(pretraining(tmp_path, [train_row(i, data_wait=x) for i, x in enumerate(waits)])))
    assert check.status == WARN and check.message.startswith('30.0% of the time') and 'local disk' in check.fix
    assert only(outcome.slow_input(pretraining(tmp_path, [train_row(1), train_row(2)]))).status == OK
    assert not list(outcome.slow_input(pretraining(tmp_path, [train_row(1, data_wait=0.9)])))


@pytest.mark.parametrize(
    ('kind', 'fix'),
    [('save', 'config.checkpoint_every'), ('evaluation', 'config.eval_every'), ('start', 'run=corpus')],
)
def test_time_that_is_not_spent_in_steps_is_reported(tmp_path: pathlib.Path, kind: str, fix: str):
    row = {'step': 9, 'after': 0, 'began': 1.0, 'seconds': {'step': 1000.0, kind: 400.0, 'data': 3.0}}
    (tmp_path / TIMES).write_text(json.dumps(row) + '\n')
    check = only(outcome.goodput(pretraining(tmp_path, [])))
    assert check.status == WARN and check.message.startswith('71.3% of 0:23:23') and fix in check.fix


def test_seeds_that_collapsed(tmp_path: pathlib.Path):
    """A single run or runs of a sweep give the same answer to every record (google-research/bert#505)."""
    config = to_plain(finetuning_config('glue', task='rte'))
    rows = [train_row(10 * i, loss=0.69) for i in range(1, 11)]
    run = Run(tmp_path, 'configs/glue.py:rte', config, True, rows)
    results = {'score': 'accuracy', 'splits': {'dev': {'accuracy': 0.5}}}
    (tmp_path / 'results.json').write_text(json.dumps({**results, 'collapsed': True}))
    check = only(outcome.collapsed(run))
    assert check.status == FAIL and 'the same answer' in check.message and 'a higher rate' in check.fix
    for seed in range(3):
        trial = tmp_path / 'trials' / f'seed{seed}'
        trial.mkdir(parents=True)
        (trial / 'results.json').write_text(json.dumps({**results, 'collapsed': seed == 1}))
    check = only(outcome.collapsed(run))
    assert check.status == WARN
    assert check.message == '1 of 3 runs failed or give nearly the same answer to every record: seed1'
    assert check.fix.startswith('use the best run on dev; or a lower learning rate')
    for path in tmp_path.glob('trials/*/results.json'):
        path.write_text(json.dumps({**results, 'collapsed': True}))
    check = only(outcome.collapsed(run))
    assert check.status == FAIL and check.fix.startswith('a lower learning rate')
    for path in tmp_path.glob('trials/*/results.json'):
        path.write_text(json.dumps({**results, 'collapsed': path.parent.name == 'seed1'}))
    (tmp_path / 'trials' / 'seed1' / 'results.json').write_text(json.dumps({**results, 'collapsed': False}))
    assert only(outcome.collapsed(run)).status == OK


def test_the_progress_of_a_run_is_reported(tmp_path: pathlib.Path):
    run = pretraining(tmp_path, [train_row(400)])
    check = only(outcome.progress(run, at_work=False))
    assert check.status == WARN and 'ended at step 400 of 1,000, there is no checkpoint yet' in check.message
    assert only(outcome.progress(run, at_work=True)).message == 'at work, step 400 of 1,000'
    assert only(outcome.progress(pretraining(tmp_path, [train_row(1000)]), at_work=False)).status == OK
    (tmp_path / 'hang.log').write_text('stopped: no progress for 30 minutes waiting for data (config.hang…\nFile')
    (tmp_path / 'checkpoints' / 'damaged' / '300').mkdir(parents=True)
    _, damaged, hang = outcome.progress(run, at_work=False)
    assert damaged.message.endswith('damaged/300 is damaged, and was set aside')
    assert hang.message == 'no progress for 30 minutes waiting for data' and 'hang.log has the stacks' in hang.fix


@pytest.mark.parametrize('decay', [None, 300])
def test_a_budget_has_no_length_until_the_clock_decides_it(tmp_path: pathlib.Path, decay: int | None):
    BudgetPlan('10m', {}, estimate=600, warmup=10, stable=690 if decay else None, decay=decay).save(tmp_path)
    run = pretraining(tmp_path, [train_row(100)], budget='10m')
    check = only(outcome.progress(run, at_work=False))
    assert check.message.startswith('ended at step 100 of 1,000,' if decay else 'ended at step 100, ')
    assert overview_section(run, ChanceBaselines()).data['tiles']['steps'] == ('100', 'of 1,000' if decay else 'so far')
