"""run=show: the resolved config, and its differences from the recipe and from the run in the workdir."""

import json
import pathlib

import jax
import pytest
from running import GLUE, Program

from bertjax.commands import show
from bertjax.config.files import load_recipe
from bertjax.config.plain import flatten, to_plain
from bertjax.config.recipes import finetuning_config, pretraining_config
from bertjax.workdir.differences import find_differences, resolve_like


def parts(out: str) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Returns {key: value} and {title of a comparison: {key: 'before -> after'}}."""
    listed, *compared = out.strip().split('\n\n')
    keys = dict(line.split(maxsplit=1) for line in listed.splitlines())
    differences = {}
    for part in compared:
        title, *lines = part.splitlines()
        differences[title] = dict(line.strip().split(maxsplit=1) for line in lines)
    return keys, differences


def test_the_config_and_its_changes_are_shown(program: Program, tmp_path: pathlib.Path):
    recipe = 'configs/pretrain_tiny.py'
    change = ('--config.batch_size=4', '--config.phases=()', '--config.seed=0', '--config.run=show')
    keys, compared = parts(program.run(*change, f'--workdir={tmp_path / "new"}', recipe=recipe, small=False).stdout)
    base = flatten(load_recipe(str(program.repository / recipe)))
    assert keys.keys() == base.keys() - {'run'} and keys['batch_size'] == '4' and keys['phases'] == '()'
    assert list(keys) == sorted(keys)
    differs = compared.pop(f'differs from the recipe {recipe} in')
    assert differs.keys() == {'batch_size', 'corpus'} and not compared  # nothing about a workdir without a run
    assert differs['batch_size'].split() == [str(base['batch_size']), '->', '4']
    assert not (tmp_path / 'new').exists()


def test_phases_of_the_command_line_get_their_other_keys(program: Program):
    phases = "--config.phases=({'steps': '50%', 'seq_len': 32, 'max_predictions': 5}, {'steps': '50%'})"
    keys, _ = parts(program.run(phases, '--config.run=show').stdout)
    assert (keys['phases[0].seq_len'], keys['phases[1].seq_len'], keys['phases[1].reset_optimizer']) == (
        '32',
        '0',
        'False',
    )
    line = program.error("--config.phases=({'steps': '100%', 'seq_len': 'x'},)", '--config.run=show')
    assert line.startswith("error: config.phases: found ({'steps': '100%', 'seq_len': 'x'},), expected values of")
    line = program.error(
        phases, '--config.phases[1].batch_size=8', '--config.run=show', recipe='configs/pretrain_base.py'
    )
    assert 'batch_size is not a valid key' in line


def test_shown_values_are_valid_flags(program: Program):
    arguments = ['--config.sweep.learning_rate=(0.001, 1e-05)', '--config.steps=2epochs', '--config.run=show']
    keys, compared = parts(program.run(*arguments, **GLUE).stdout)
    again = [f'--config.{key}={value.strip(chr(39))}' for key, value in keys.items()]
    assert parts(program.run(*again, '--config.run=show', **GLUE).stdout) == (keys, compared)
    assert keys['steps'] == "'2epochs'" and keys['sweep.learning_rate'] == '(0.001, 1e-05)'


def test_the_config_is_compared_with_the_run(
    program: Program, trained: pathlib.Path, tuned: pathlib.Path, tune: tuple[str, ...]
):
    """The command of the run shows no differences, because durations of any unit are compared in steps."""
    from running import RUN

    out = program.run(*RUN, f'--workdir={trained}', '--config.run=show').stdout
    assert out.endswith(f'the same as the run in {trained}\n') and '\ngoodput ' in out
    out = program.run(*tune, f'--workdir={tuned}', '--config.run=show', **GLUE).stdout
    assert out.endswith(f'the same as the run in {tuned}\n')
    out = program.run(f'--workdir={trained}', '--config.run=show', recipe='configs/extract.py', small=False).stdout
    assert 'the run in' not in out  # a recipe that trains nothing has nothing to compare
    out = program.run(*RUN, f'--workdir={trained}', '--config.eval_every=50%', '--config.run=show').stdout
    assert parts(out)[1][f'differs from the run in {trained} in'] == {'eval_every': '8  ->  12'}
    saved = json.loads((tuned / 'config.json').read_text())
    out = program.run(*tune, f'--workdir={tuned}', '--config.epochs=6', '--config.run=show', **GLUE).stdout
    found = parts(out)[1][f'differs from the run in {tuned} in']
    assert found['steps'].split() == [str(saved['steps']), '->', str(saved['steps'] // 2)]
    assert found.keys() == {'steps', 'epochs'}


def test_mistakes_are_errors(program: Program, tuned: pathlib.Path):
    assert 'config.batch_size' in program.error('--config.run=show', '--config.batch_size=0')
    assert 'the config of a pre-training' in program.error(f'--workdir={tuned}', '--config.run=show')


def test_no_device_is_started(monkeypatch: pytest.MonkeyPatch, capsys, program: Program):
    """The config can be shown while a run uses the TPU."""

    def fail(*arguments, **options):
        raise AssertionError('a device was started')

    for name in ('devices', 'local_devices', 'device_count'):
        monkeypatch.setattr(jax, name, fail)
    monkeypatch.setattr('jax._src.xla_bridge.backends', fail)
    recipe = str(program.repository / 'configs/pretrain_tiny.py')
    show.run(load_recipe(recipe), None, recipe)
    assert 'the same as the recipe' in capsys.readouterr().out


def test_keys_that_a_pretraining_takes_from_its_model_or_budget_are_no_differences():
    config = to_plain(pretraining_config('tiny', init='model', architecture_from='init'))
    run = config | {'model': config['model'] | {'num_layers': 7, 'width': 448, 'num_heads': 7}}
    assert find_differences(run, resolve_like(config, run)) == []
    config |= {'architecture_from': 'budget', 'budget': '20s'}
    run |= {'architecture_from': 'budget', 'budget': '20s', 'steps': 50, 'batch_size': 8, 'learning_rate': 0.5}
    run['phases'] = [{'steps': 4}, {'steps': 46}]
    differences = find_differences(run, resolve_like(config, run))
    assert [key for key, *_ in differences] == ['learning_rate']
    resolved = resolve_like({**config, 'eval_every': '10%'}, run | {'eval_every': 5}, ['eval_every'])
    assert resolved['eval_every'] == 5  # a share of the steps of the run's plan
    config |= {'batch_size': 32, 'model': config['model'] | {'width': 64}}
    differences = find_differences(run, resolve_like(config, run, ['batch_size', 'model.width']))
    assert differences == [
        ('batch_size', '8', '32'), ('learning_rate', '0.5', f'{config["learning_rate"]}'), ('model.width', '448', '64')
    ]  # fmt: skip


def test_another_batch_size_changes_the_steps_of_an_epoch():
    config = to_plain(finetuning_config('glue', task='rte')) | {'epochs': 3.0, 'eval_every': '1epochs'}
    run = config | {'steps': 234, 'eval_every': 78}
    resolved = resolve_like(config | {'batch_size': 16}, run)
    assert (resolved['steps'], resolved['eval_every'], resolved['epochs']) == (468, 156, 3.0)


@pytest.mark.parametrize('steps', [0, 100, '2epochs'])
def test_the_config_of_a_sweep_equals_its_recipe(steps: int | str):
    """A sweep records durations as its config has them."""
    config = to_plain(finetuning_config('glue', task='rte')) | {'steps': steps}
    assert find_differences(config, resolve_like(config, config)) == []
