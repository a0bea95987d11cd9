"""Which keys of the command line count when a workdir has a run: its own, but for what may be asked anew."""

import pathlib

import pytest
from ml_collections import ConfigDict

from bertjax.config.files import load_recipe
from bertjax.config.plain import dump
from bertjax.errors import UserError
from bertjax.finetune.restore import merge_run_config


def recipe(repository: pathlib.Path, name: str, **changes) -> ConfigDict:
    config = load_recipe(f'{repository}/configs/{name}')
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


@pytest.fixture
def folder(repository: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Of a run of SQuAD with its own length, stride and choice of step."""
    trained = recipe(repository, 'squad.py:v2', seq_len=256, use_checkpoint='best', data='squad', init='small')
    trained.task.stride = 64
    (tmp_path / 'config.json').write_text(dump(trained))
    return tmp_path


def test_the_config_is_that_of_the_run(repository: pathlib.Path, folder: pathlib.Path):
    own = merge_run_config(recipe(repository, 'squad.py', run='evaluate', eval_batch_size=7), folder)
    assert (own.run, own.eval_batch_size) == ('evaluate', 7)
    assert (own.seq_len, own.task.stride, own.task.version, own.use_checkpoint) == (256, 64, '2.0', 'best')
    assert (own.data, own.init) == ('squad', 'small')


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('task.dev_file', 'own.json'),
        ('task.n_best', 3),
        ('use_checkpoint', 'last'),
        ('model.dtype', 'bfloat16'),
        ('data', 'x'),
    ],
)
def test_what_may_be_asked_anew(repository: pathlib.Path, folder: pathlib.Path, key: str, value):
    own = merge_run_config(recipe(repository, 'squad.py', **{key: value}), folder, {key})
    found = own
    for part in key.split('.'):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ('key', 'value'),
    [('task.stride', 32), ('task.version', '1.1'), ('seq_len', 384), ('init', 'other'), ('tokenizer', 'x')],
)
def test_what_the_model_depends_on_is_refused(repository: pathlib.Path, folder: pathlib.Path, key: str, value):
    asked = recipe(repository, 'squad.py:v2', **{key: value})
    with pytest.raises(UserError, match=f'config.{key}: found {value!r}, expected .*, as in .*config.json'):
        merge_run_config(asked, folder, {key})
    merge_run_config(asked, folder)  # the recipe's own, that nobody asked for


def test_a_recipe_of_ones_own_has_every_option(repository: pathlib.Path, tmp_path: pathlib.Path):
    sick = recipe(repository, 'sick.py:e', data='sick', init='small')
    assert sick.task.columns == () and sick.task.long == 'truncate'
    (tmp_path / 'config.json').write_text(dump(sick))
    asked = recipe(repository, 'classify.py', **{'task.columns': ('a', 'b'), 'task.long': 'windows'})
    assert merge_run_config(asked, tmp_path, {'task.columns'}).task.columns == ('a', 'b')
    with pytest.raises(UserError, match=r"config\.task\.long: found 'windows', expected 'truncate'"):
        merge_run_config(asked, tmp_path, {'task.long'})


def test_the_command_of_the_training_with_another_verb_is_right(repository: pathlib.Path, folder: pathlib.Path):
    again = recipe(repository, 'squad.py:v2', seq_len=256, init='small', learning_rate=1.0, epochs=9.0)
    again.task.stride = 64
    given = {'seq_len', 'init', 'learning_rate', 'epochs', 'task.stride', 'task.version'}
    assert merge_run_config(again, folder, given).learning_rate == 5e-5
