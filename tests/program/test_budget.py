"""config.budget: a time or a number of operations decides the model size, the steps and the learning rate decay."""

import json
import pathlib
import shutil
import signal
from unittest import mock

import pytest
from ml_collections import ConfigDict
from running import SLOW_STEPS, Program, copy_workdir, wait_for_exit, wait_for_step

from bertjax.config.saved_config import make_recipe
from bertjax.pretrain.budget_plan import BudgetPlan
from bertjax.training.time_limit import TimeLimit

SMALL = (
    '--config.vocab.size=400', '--config.seq_len=32', '--config.max_predictions=13', '--config.batch_size=8',
    '--config.pair_plans=2', '--config.eval_examples=32', '--config.log_every=20', '--config.corpus_options.workers=1',
    '--config.optimizer.name=adamw', '--config.learning_rate=1e-3',
)  # fmt: skip
SIZE = ('--config.model.num_layers=1', '--config.model.width=32', '--config.model.mlp_dim=64',
        '--config.model.num_heads=2')  # fmt: skip


def _arguments(program: Program, folder: pathlib.Path, *more: str) -> tuple[str, ...]:
    return (f'--workdir={folder}', f'--config.corpus={program.corpus}', *SMALL, *SIZE, *more)


def _plan(folder: pathlib.Path) -> dict:
    return json.loads((folder / 'budget.json').read_text())


def _spawn(program: Program, folder: pathlib.Path, *more: str, budget: str = '5s', **options) -> str:
    arguments = _arguments(program, folder, *more)
    return program.spawn(*arguments, recipe=f'configs/budget.py:{budget}', small=False, **options).stdout


@pytest.fixture(scope='module')
def timed(program: Program, once) -> pathlib.Path:
    """The workdir of a run of five seconds."""
    return once('budget', lambda folder: _spawn(program, folder / 'run')) / 'run'


def test_the_clock_ends_the_constant_rate_and_decides_the_decay(timed):
    plan, config = _plan(timed), json.loads((timed / 'config.json').read_text())
    lengths = [plan['warmup'], plan['stable'], plan['decay']]
    assert min(lengths) >= 1 and config['steps'] == sum(lengths)
    assert [phase['steps'] for phase in config['phases']] == lengths
    assert (timed / 'export' / 'hf' / 'model.safetensors').exists()


def test_a_replay_has_the_same_bits(program, timed, tmp_path):
    out = _spawn(program, tmp_path / 'again', f'--config.replay={timed}')
    assert _plan(tmp_path / 'again') == _plan(timed) and 'budget 5s: ' in out
    for name in ('ledger.jsonl', 'export/hf/model.safetensors', 'config.json'):
        replayed, first = ((folder / name).read_bytes() for folder in (tmp_path / 'again', timed))
        assert replayed.replace(str(timed).encode(), b'') == first, name


def test_a_model_that_is_too_large_is_reported_before_a_vocabulary_is_trained(program, tmp_path, monkeypatch):
    monkeypatch.setattr('bertjax.training.settings.device_memory', lambda mesh: 1 << 10)
    error = program.error(*_arguments(program, tmp_path / 'run'), recipe='configs/budget.py:5s', small=False)
    assert error.startswith('error: config.model: found ') and not (tmp_path / 'run' / 'tokenizer').exists()


@pytest.mark.slow
def test_a_signal_between_two_phases_stops_the_second(program, tmp_path):
    def decide(*arguments, original=BudgetPlan.decide, **options):
        signal.raise_signal(signal.SIGINT)
        original(*arguments, **options)

    with (
        mock.patch.object(BudgetPlan, 'decide', decide),
        mock.patch.object(TimeLimit, 'ends_phase', lambda self, number: number == 1),
        mock.patch('bertjax.pretrain.budget_choice.step_seconds', lambda settings, mesh: 1.0),
    ):
        arguments = _arguments(program, tmp_path / 'run', '--config.checkpoint_every=0')
        stopped = program.run(*arguments, recipe='configs/budget.py:5m', small=False, status=75)
    plan = _plan(tmp_path / 'run')
    assert plan['decay'] and f'stopped at step {plan["warmup"] + plan["stable"]} as asked' in stopped.stderr
    assert not (tmp_path / 'run' / 'export').exists()


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_remaining_time(program, tmp_path):
    # The warm-up has 25 steps: the kill comes within it, and the clock ends the constant rate.
    plan = """
    from bertjax.pretrain import budget_choice
    budget_choice.step_seconds = lambda settings, mesh: 2e-3
    """
    flags = ('--config.checkpoint_every=10', '--config.schedule.decay_fraction=0.2', '--config.warmup_fraction=0.005')
    slow = program.with_startup(tmp_path / 'startup', SLOW_STEPS + plan)
    arguments = _arguments(program, tmp_path / 'run', *flags)
    process = slow.start(*arguments, recipe='configs/budget.py:10s', small=False)
    wait_for_step(process, tmp_path / 'run', 12)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert _plan(tmp_path / 'run')['stable'] is None
    out = _spawn(slow, tmp_path / 'run', *flags, budget='10s')
    assert 'continuing at step' in out and '% of the budget  ends ' in out
    _spawn(program, tmp_path / 'again', *flags, f'--config.replay={tmp_path / "run"}', budget='10s')
    assert _plan(tmp_path / 'again') == _plan(tmp_path / 'run')
    ledgers = [(tmp_path / name / 'ledger.jsonl').read_bytes() for name in ('run', 'again')]
    weights = [(tmp_path / name / 'export/hf/model.safetensors').read_bytes() for name in ('run', 'again')]
    assert ledgers[0] == ledgers[1] and weights[0] == weights[1]


@pytest.mark.slow
def test_two_processes_follow_one_clock(program, tmp_path):
    """The first process decides for both, because their clocks differ. The text may change at that moment."""
    text = shutil.copy(program.corpus, tmp_path / 'text.txt')
    more = ('--config.checkpoint_every=0', '--config.warmup_fraction=0.001', f'--config.corpus={text}')
    arguments = _arguments(program, tmp_path / 'run', *more)
    changed_text = f"""
    from bertjax.pretrain.budget_plan import BudgetPlan

    def decide(self, *arguments, original=BudgetPlan.decide, **options):
        with open({str(text)!r}, 'a') as file:
            file.write('Another sentence. ' * 100)
        original(self, *arguments, **options)

    BudgetPlan.decide = decide
    """
    slow = program.with_startup(tmp_path / 'startup', SLOW_STEPS + changed_text)
    processes = slow.start_together(2, *arguments, recipe='configs/budget.py:8s', small=False)
    ends = [wait_for_exit(process) for process in processes]
    plan, config = _plan(tmp_path / 'run'), json.loads((tmp_path / 'run' / 'config.json').read_text())
    assert config['steps'] == plan['warmup'] + plan['stable'] + plan['decay'] and 'goodput' in ends[0].stdout
    assert 'Another sentence.' in (tmp_path / 'text.txt').read_text() and 'of 2 processes' not in ends[0].stdout


@pytest.mark.slow
def test_a_budget_of_operations_decides_the_steps(program, tmp_path, monkeypatch):
    """A finished run has all its steps, so the same command does not train again, nor on a machine with other devices.

    The run has pairs and segments.
    """
    monkeypatch.setattr('bertjax.pretrain.budget_choice._CPU_PART_POSITIONS', 512)

    def run() -> str:
        arguments = _arguments(program, tmp_path / 'run', '--config.batch_size=32')
        return program.run(*arguments, recipe='configs/budget.py:2e9,pairs', small=False).stdout

    out, plan = run(), _plan(tmp_path / 'run')
    assert plan['warmup'] + plan['stable'] + plan['decay'] == plan['estimate'] and plan['model'].keys() == {'dtype'}
    monkeypatch.setattr('bertjax.pretrain.budget_choice.is_cpu', lambda mesh: False)
    assert f'all {plan["estimate"]} steps are done' in run()
    assert 'masked positions: 40%, then 40% to 15% in training' in out and 'IsNext' in out
    model = json.loads((tmp_path / 'run' / 'export' / 'orbax' / 'model.json').read_text())
    assert model['nsp'] and model['num_segments'] == 2
    assert json.loads((tmp_path / 'run' / 'config.json').read_text())['grad_accum_steps'] == 2


@pytest.mark.slow
def test_the_size_of_a_plan_stays_until_it_conflicts(program, tmp_path):
    """A plan without a checkpoint is replaced. Else all verbs use its size, and a key of another size is refused."""
    plan = {'budget': '2e9', 'model': dict(num_layers=1, width=16, num_heads=1, mlp_dim=32), 'estimate': 3}
    for name, budget in (('first', '2e9'), ('run', '3e9')):
        (tmp_path / name).mkdir()
        text = json.dumps(plan | {'budget': budget, 'warmup': 1, 'stable': 1, 'decay': 1})
        (tmp_path / name / 'budget.json').write_text(text)

    def arguments(*more: str, name: str = 'run') -> dict:
        changes = (f'--workdir={tmp_path / name}', f'--config.corpus={program.corpus}', *SMALL, *more)
        return {'changes': changes, 'recipe': 'configs/budget.py:2e9', 'small': False}

    def error(*more: str, **options) -> str:
        given = arguments(*more, **options)
        return program.error(*given.pop('changes'), **given).removeprefix('error: ')

    def run(*more: str, **options) -> str:
        given = arguments(*more, **options)
        return program.run(*given.pop('changes'), **given).stdout

    replay, width = f'--config.replay={tmp_path / "first"}', '--config.model.width=64'
    assert error(replay, '--config.budget=4e9', name='new').startswith(
        "config.budget: found '4e9', expected 2e9, as in"
    )
    assert not (tmp_path / 'new' / 'budget.json').exists()
    assert error(replay, width).startswith('config.model.width: found 64, expected 16, as in ')
    assert '1 layers of width 16' in run(replay)
    for flags in ((width,), (width, replay), (width, '--config.run=export')):
        assert error(*flags).startswith('config.model.width: found 64, expected 16, as in ')
    assert 'step 3 exported to ' in run('--config.run=export')
    saved = program.run(f'--workdir={tmp_path / "run"}', recipe=str(tmp_path / 'run' / 'config.json'), small=False)
    assert 'all 3 steps are done' in saved.stdout
    assert 'batch_size' in make_recipe(str(tmp_path / 'run' / 'config.json'), ConfigDict()).flag_keys
    other = program.run(f'--workdir={tmp_path / "other"}', recipe=str(tmp_path / 'run' / 'config.json'), small=False)
    assert '1 layers of width 16 in float32' in other.stdout
    assert error(replay, '--config.budget=4e9').endswith('or give another --workdir')
    (tmp_path / 'other' / 'budget.json').write_text('{"budget"')
    assert 'budget.json: found no readable plan beside the checkpoints' in error(name='other')
    (tmp_path / 'first' / 'budget.json').write_text(json.dumps(_plan(tmp_path / 'run') | {'warmup': 2}))
    assert error(replay).startswith('config.replay: found ')


def test_the_decay_ends_with_the_budget(tmp_path):
    row = {'step': 100, 'after': 0, 'began': 0.0, 'seconds': {'start': 2.0, 'compile': 8.0, 'step': 20.0}}
    (tmp_path / 'time.jsonl').write_text(json.dumps(row) + '\n')
    BudgetPlan('100s', {}, 300, 10).decide(tmp_path, 100, 30.0, evaluates=False)
    assert (_plan(tmp_path)['stable'], _plan(tmp_path)['decay']) == (90, 350)  # (100 - 30) / (20 / 100)


def test_the_evaluations_of_the_decay_belong_to_the_budget(tmp_path):
    seconds = {'start': 2.0, 'compile': 8.0, 'step': 20.0, 'evaluation': 13.0}
    row = {'step': 100, 'after': 0, 'began': 0.0, 'seconds': seconds}
    (tmp_path / 'time.jsonl').write_text(json.dumps(row) + '\n')
    BudgetPlan('100s', {}, 300, 10).decide(tmp_path, 100, 43.0, evaluates=True)
    assert _plan(tmp_path)['decay'] == round((100 - 43) / (33 / 100))


def test_the_decay_is_planned_without_a_log_of_the_time(tmp_path):
    BudgetPlan('100s', {}, 300, 10).decide(tmp_path, 100, 20.0, evaluates=False)
    assert _plan(tmp_path)['decay'] == 400  # (100 - 20) / (20 / 100)
    BudgetPlan('100s', {}, 300, 10).decide(tmp_path, 100, 101.0, evaluates=False)
    assert _plan(tmp_path)['decay'] == 10  # no time is left


@pytest.mark.parametrize(
    ('flags', 'name'),
    [
        (('--config.steps=10',), 'config.steps'),
        (('--config.epochs=2',), 'config.epochs'),
        (('--config.schedule.name=linear',), 'config.schedule.name'),
        (('--config.replay=/nowhere',), '/nowhere/budget.json'),
        (('--config.budget=1e40',), 'config.budget'),
    ],
)
def test_settings_that_conflict_with_a_budget_are_refused(program, tmp_path, flags, name):
    message = program.error(*_arguments(program, tmp_path, *flags), recipe='configs/budget.py:1m', small=False)
    assert message.startswith(f'error: {name}: found ')
    assert not (tmp_path / 'checkpoints').exists()


def test_a_change_in_a_timed_run_is_printed(program, timed, tmp_path):
    """The steps and phases, which the time decides, are not printed."""
    shutil.copytree(timed, tmp_path / 'run')
    arguments = _arguments(program, tmp_path / 'run', '--config.eval_examples=16', '--config.export=False')
    out = program.run(*arguments, recipe='configs/budget.py:5s', small=False).stdout
    changes = [line for line in out.splitlines() if 'changed' in line]
    assert changes == ['changed since the checkpoint: eval_examples: 32 -> 16']


def test_another_budget_in_a_workdir_is_refused(program, timed):
    message = program.error(*_arguments(program, timed), recipe='configs/budget.py:7s', small=False)
    assert message.startswith("error: config.budget: found '7s', expected 5s, as in ")
    assert 'set --config=configs/budget.py:5s, or' in message


def test_the_vocabulary_of_a_budget_follows_its_argument(program, tmp_path):
    flags = (f'--workdir={tmp_path}', f'--config.corpus={program.corpus}', '--config.budget=2h')
    message = program.error(*flags, recipe='configs/budget.py', small=False)
    assert message.startswith("error: config.budget: found '2h', expected the argument of the recipe")


def test_mistakes_in_the_text_are_reported_before_a_step_is_timed(program, tmp_path, monkeypatch):
    monkeypatch.setattr('bertjax.commands.pretrain.make_plan', None)
    for flag in (
        '--config.corpus=/nowhere/*.txt',
        '--config.heldout_pairs=/nowhere',
        '--config.heldout_texts=a=/nowhere',
    ):
        message = program.error(*_arguments(program, tmp_path, flag), recipe='configs/budget.py:1m', small=False)
        assert '/nowhere' in message


def test_a_budget_for_a_run_without_one_is_refused(program, short_run, tmp_path):
    workdir = copy_workdir(short_run, tmp_path / 'run')
    message = program.error(*_arguments(program, workdir), recipe='configs/budget.py:7s', small=False)
    assert message.startswith(f"error: config.budget: found '7s', expected '', as in {workdir}/config.json; leave")
