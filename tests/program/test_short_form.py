"""The short form of the command line, RECIPE KEY=VALUE, and saved configs are the same program."""

import json
import pathlib
import sys

import pytest
from running import PRETRAIN, SMALL, Program

import bertjax
from bertjax.config.plain import to_plain
from bertjax.errors import UserError

RUN = ('--config.steps=3', '--config.learning_rate=3e-4', '--config.export=false')


def _words(flags: tuple[str, ...]) -> list[str]:
    return [flag.removeprefix('--config.') for flag in flags]


def _losses(workdir: pathlib.Path) -> list[float]:
    rows = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
    return [row['loss'] for row in rows if row['split'] == 'heldout']


@pytest.fixture(scope='module')
def finished(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished run of the short form; stdout.txt has its output."""
    workdir = tmp_path_factory.mktemp('short') / 'run'
    words = [*_words(SMALL), f'corpus={program.corpus}', 'max_steps=3', 'lr=3e-4', 'export=false']
    out = program.run(*words, PRETRAIN, '--workdir', str(workdir), recipe='', small=False).stdout
    (workdir / 'stdout.txt').write_text(out)
    return workdir


def test_words_are_flags(program: Program, finished: pathlib.Path):
    long_form = (finished / 'stdout.txt').read_text().splitlines()[0]
    assert long_form.startswith(f'bertjax --config={PRETRAIN} --config.model.width=32 ')
    assert long_form.endswith(f' --config.learning_rate=3e-4 --config.export=false --workdir={finished}')
    shown = program.run(*RUN, '--config.run=show', f'--workdir={finished}').stdout
    assert f'the same as the run in {finished}' in shown


def test_a_saved_config_names_a_recipe(program: Program, finished: pathlib.Path, tmp_path: pathlib.Path):
    file, values = tmp_path / 'saved.yaml', _words((*SMALL, *RUN))
    groups: dict[str, list[str]] = {}
    for value in values:
        key, _, number = value.partition('=')
        group, _, name = key.rpartition('.')
        groups.setdefault(group, []).append(f'{name}: {number}')
    lines = [f'recipe: {PRETRAIN}', *groups.pop('')]
    lines += [f'{group}: {{{", ".join(entries)}}}' for group, entries in groups.items()]
    file.write_text('\n'.join(lines))
    words = (f'corpus={program.corpus}', 'run=show', f'workdir={finished}')
    assert f'the same as the run in {finished}' in program.run(str(file), *words, recipe='', small=False).stdout


@pytest.mark.slow
def test_the_config_of_a_run_is_a_saved_config(program: Program, finished: pathlib.Path, tmp_path: pathlib.Path):
    saved = finished / 'config.json'
    program.run(f'--config={saved}', f'--workdir={tmp_path}', recipe='', small=False)
    assert (tmp_path / 'config.json').read_bytes() == saved.read_bytes()
    assert _losses(tmp_path) == _losses(finished)


def test_a_recorded_config_is_as_flexible_as_its_recipe(finished: pathlib.Path, tmp_path: pathlib.Path):
    recipe = bertjax.recipe(finished / 'config.json').with_keys({'eval_every': '10%', 'steps': '2epochs'})
    assert (recipe.config.eval_every, recipe.config.steps) == ('10%', '2epochs')
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(to_plain(bertjax.recipe('glue:rte').config) | {'steps': 30, 'epochs': 3.0}))
    assert [bertjax.recipe(path).with_keys(keys).config.steps for keys in ({}, {'epochs': 9.0})] == [30, 0]
    adapt = to_plain(bertjax.recipe('adapt').config)
    for position in ('rope', 'learned'):
        path.write_text(json.dumps(adapt | {'model': adapt['model'] | {'position': position}}))
        assert ('model.rope_theta' in bertjax.recipe(path).flag_keys) == (position == 'rope')


def test_text_that_begins_like_a_number_is_text(tmp_path: pathlib.Path):
    (tmp_path / 'saved.yaml').write_text('recipe: glue:rte\ninit: 1e3/model\nlearning_rate: 2e-5\n')
    config = bertjax.recipe(tmp_path / 'saved.yaml').config
    assert (config.init, config.learning_rate) == ('1e3/model', 2e-5)


def test_a_recipe_imports_its_neighbors_and_names_its_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.path', [*sys.path])
    pathlib.Path('neighbor_of_mine.py').write_text('from bertjax.config.recipes import finetuning_config as make\n')
    pathlib.Path('mine.py').write_text(
        'from neighbor_of_mine import make\n\ndef get_config():\n    return make("glue")\n'
    )
    assert bertjax.recipe('mine.py').config.task.kind == 'glue'
    pathlib.Path('mine.py').write_text('def get_config():\n    return 1 / 0\n')
    with pytest.raises(UserError, match=r'mine\.py:2: found ZeroDivisionError'):
        bertjax.recipe('mine.py')


def test_a_saved_config_has_phases(program: Program, tmp_path: pathlib.Path):
    file = tmp_path / 'saved.yml'
    file.write_text('recipe: pretrain_base\nsteps: 10\nphases:\n- {steps: 90%, seq_len: 32}\n- {steps: 20%}\n')
    error = program.error(str(file), f'--workdir={tmp_path}', recipe='', small=False)
    assert 'config.phases: found 110% of the steps' in error


def test_the_keys_of_a_saved_config_count_as_set(program: Program, tmp_path: pathlib.Path):
    (tmp_path / 'saved.yaml').write_text('recipe: budget:5m\nsteps: 7\n')
    workdir = f'--workdir={tmp_path}'
    by_file = program.error(str(tmp_path / 'saved.yaml'), workdir, recipe='', small=False)
    assert by_file == program.error('budget:5m', 'steps=7', workdir, recipe='', small=False)


def test_a_saved_config_may_have_a_budget_without_quotes(tmp_path: pathlib.Path):
    (tmp_path / 'saved.yaml').write_text('recipe: budget:5m\nbudget: 3e15\n')
    assert bertjax.recipe(tmp_path / 'saved.yaml').config.budget == '3e15'


def test_a_saved_config_may_have_keys_for_several_verbs(program: Program, tmp_path: pathlib.Path):
    (tmp_path / 'saved.yaml').write_text('recipe: classify\nsplit: test\ntracker_project: bert\n')
    line = program.error(str(tmp_path / 'saved.yaml'), f'--workdir={tmp_path}/run', recipe='', small=False)
    assert 'config.init: found nothing' in line
    line = program.error(
        str(tmp_path / 'saved.yaml'), 'split=dev,test', f'--workdir={tmp_path}/run', recipe='', small=False
    )
    assert "config.split: found 'dev,test' with config.run='finetune'" in line


def test_a_saved_config_has_the_argument_of_its_recipe(tmp_path: pathlib.Path):
    for name, argument in (('glue:sst2', True), ('glue', False)):
        (tmp_path / 'saved.yaml').write_text(f'recipe: {name}\nseed: 3\n')
        (tmp_path / 'other.yaml').write_text(f'recipe: {tmp_path}/saved.yaml\n')
        recipe = bertjax.recipe(tmp_path / 'other.yaml')
        assert recipe.command_line_keys == ({'seed', 'task.task'} if argument else {'seed'})


def test_a_recipe_of_the_user_for_a_distillation_may_have_an_argument(tmp_path: pathlib.Path):
    (tmp_path / 'mine.py').write_text(
        'from bertjax.config.recipes import distillation, finetuning_config, parse_argument\n\n'
        'def get_config(argument=""):\n'
        '    config = distillation(finetuning_config("glue", task="rte"))\n'
        '    config.seed = parse_argument(argument, seed=0).seed\n'
        '    return config\n'
    )
    recipe = bertjax.recipe(f'{tmp_path}/mine.py:seed=4')
    assert recipe.config.seed == 4 and recipe.command_line_keys == {'seed'}


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('recipe: [', 'expected a YAML mapping of keys to values'),
        ('- steps', 'found a list, expected a YAML mapping'),
        ('', 'saved.yaml: found no keys, expected a YAML mapping'),
        ('recipe: pretrain_tiny\n3: 4', 'saved.yaml: found the key 3, expected a name as the key'),
        ('model: base', "saved.yaml: model: found 'base', expected keys such as model."),
        ('recipe: 3', 'recipe: found 3, expected the name or the path of a recipe'),
        ('recipe: pretrain_tinny', 'saved.yaml: --config: found no recipe'),
        ('recipe: pretrain_tiny\nbatchsize: 3', 'saved.yaml: --config.batchsize: found an unknown config key'),
        ('recipe: pretrain_tiny\nbatch_size: many', "saved.yaml: config.batch_size: found 'many'"),
        ('recipe: pretrain_tiny\noptimizer: 3', 'saved.yaml: --config.optimizer: found a value for a group of keys'),
        ('recipe: pretrain_base\nphases: [{stepps: 3}]', 'stepps'),
        ('recipe: pretrain_base\nphases: 3', 'saved.yaml: config.phases'),
        ('recipe: pretrain_base\nphases: [3]', 'saved.yaml: config.phases: found [3]'),
        ('recipe: pretrain_tiny\ncorpus: [a.txt, b.txt]', "saved.yaml: config.corpus: found ['a.txt', 'b.txt']"),
        ('recipe: pretrain_tiny\nbudget: 25', 'expected text: a time such as 25m'),
        ('steps: 3', 'add `recipe: NAME`'),
        ('recipe: pretrain_tiny\ndata: 2024-13-45', 'saved.yaml: found month must be in 1..12'),
    ],
)
def test_mistakes_in_a_saved_config(program: Program, tmp_path: pathlib.Path, text: str, named: str):
    (tmp_path / 'saved.yaml').write_text(text)
    error = program.error(str(tmp_path / 'saved.yaml'), f'--workdir={tmp_path / "run"}', recipe='', small=False)
    assert named in error
    assert not (tmp_path / 'run').exists()


def test_help_of_a_recipe_as_a_word(program: Program):
    text = program.run('--help', 'glue', recipe='', small=False).stdout
    assert text == program.run('--config=glue', '--help', recipe='', small=False).stdout
    assert 'Keys of' in text
    error = program.error('--help', 'glue:xyz', recipe='', small=False)
    assert "config.task.task: found 'xyz', expected one of cola, " in error


def test_a_word_may_set_none(program: Program, tmp_path: pathlib.Path):
    words = ('extract', 'run=show', 'extract.normalize=None', f'--workdir={tmp_path / "new"}')
    assert 'the same as the recipe extract' in program.run(*words, recipe='', small=False).stdout
