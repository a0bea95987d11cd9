"""Tests which keys of the command line replace those of the run in a workdir."""

import json
import pathlib

import pytest
from ml_collections import ConfigDict

from bertjax.config.files import Recipe, load_recipe
from bertjax.config.plain import dump, to_plain
from bertjax.errors import UserError
from bertjax.finetune.restore import evaluation_settings, merge_run_config, merge_task_file
from bertjax.finetune.results import describe_other_data
from bertjax.finetune.settings import finetuning_settings


def recipe(repository: pathlib.Path, name: str, **changes) -> ConfigDict:
    config = load_recipe(f'{repository}/configs/{name}')
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


@pytest.fixture
def folder(repository: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns the workdir of a SQuAD run whose length, stride and checkpoint differ from the recipe."""
    trained = recipe(repository, 'squad.py:v2', seq_len=256, use_checkpoint='best', data='squad', init='small')
    trained.task.stride = 64
    (tmp_path / 'config.json').write_text(dump(trained))
    return tmp_path


def test_the_merged_config_has_the_keys_of_the_run(repository: pathlib.Path, folder: pathlib.Path):
    config = merge_run_config(recipe(repository, 'squad.py', run='evaluate', eval_batch_size=7), folder)
    assert (config.run, config.eval_batch_size) == ('evaluate', 7)
    assert (config.seq_len, config.task.stride, config.task.version, config.use_checkpoint) == (256, 64, '2.0', 'best')
    assert (config.data, config.init) == ('squad', 'small')


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
def test_a_flag_may_change_keys_of_evaluation(repository: pathlib.Path, folder: pathlib.Path, key: str, value):
    node = merge_run_config(recipe(repository, 'squad.py', **{key: value}), folder, {key})
    for part in key.split('.'):
        node = node[part]
    assert node == value


@pytest.mark.parametrize(('argument', 'layout'), [('', 'jsonl'), (':swag', 'swag')])
def test_a_recipe_may_name_another_layout_of_files(
    repository: pathlib.Path, tmp_path: pathlib.Path, argument: str, layout: str
):
    (tmp_path / 'config.json').write_text(dump(recipe(repository, 'swag.py:jsonl')))
    config = recipe(repository, f'swag.py{argument}', data='other')
    keys = Recipe(f'{repository}/configs/swag.py{argument}', config).command_line_keys
    assert merge_run_config(config, tmp_path, keys).task.layout == layout


def test_an_absolute_file_of_the_run_is_not_used_with_other_data(repository: pathlib.Path, folder: pathlib.Path):
    trained = recipe(repository, 'squad.py:v2', seq_len=256, data='squad', **{'task.dev_file': '/old/dev.json'})
    (folder / 'config.json').write_text(dump(trained))
    assert merge_run_config(recipe(repository, 'squad.py:v2'), folder).task.dev_file == '/old/dev.json'
    other = recipe(repository, 'squad.py:v2', data='other')
    assert merge_run_config(other, folder, {'data'}).task.dev_file == ''


def test_a_file_beside_the_training_file_is_not_used_with_another_single_file(
    repository: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
):
    trained = recipe(repository, 'classify.py', data=str(tmp_path / 'train.csv'), **{'task.dev': 'dev.csv'})
    (folder / 'config.json').write_text(dump(trained))
    for name in ('later.csv', 'dev.csv'):
        (tmp_path / name).write_text('text,label\n')
    later = recipe(repository, 'classify.py', data=str(tmp_path / 'later.csv'))
    assert merge_run_config(later, folder, {'data'}).task.dev == ''
    (tmp_path / 'moved').mkdir()
    (tmp_path / 'moved' / 'train.csv').touch()
    moved = recipe(repository, 'classify.py', data=str(tmp_path / 'moved' / 'train.csv'))
    assert merge_run_config(moved, folder, {'data'}).task.dev == ''  # there is no such file
    (tmp_path / 'moved' / 'dev.csv').touch()
    assert merge_run_config(moved, folder, {'data'}).task.dev == 'dev.csv'
    for old, new, dev in (
        ('gs://b/a', 'gs://b/later', 'd.csv'), ('gs://b/a', 'gs://b/a', 'd.csv'),
        ('gs://b/a.csv', 'gs://b/later.csv', ''), (str(tmp_path), str(tmp_path / 'moved'), 'd.csv'),
    ):  # fmt: skip
        trained = recipe(repository, 'classify.py', data=old, **{'task.dev': 'd.csv'})
        (folder / 'config.json').write_text(dump(trained))
        assert merge_run_config(recipe(repository, 'classify.py', data=new), folder, {'data'}).task.dev == dev


def test_another_path_of_the_initial_model_has_no_effect_after_the_start(
    repository: pathlib.Path, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr('bertjax.finetune.restore.has_checkpoints', lambda folder: True)
    recorded = json.loads((folder / 'config.json').read_text())['init']
    merged = merge_run_config(recipe(repository, 'squad.py:v2', init='moved'), folder, {'init'})
    assert merged.init == recorded != 'moved' and 'config.init has no effect' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('key', 'value'),
    [('task.stride', 32), ('task.version', '1.1'), ('seq_len', 384), ('init', 'other'), ('tokenizer', 'x')],
)
def test_a_flag_for_a_key_of_the_model_is_refused(repository: pathlib.Path, folder: pathlib.Path, key: str, value):
    config = recipe(repository, 'squad.py:v2', **{key: value})
    with pytest.raises(UserError, match=f'config.{key}: found {value!r}, expected .*, as in .*config.json'):
        merge_run_config(config, folder, {key})
    merge_run_config(config, folder)  # A value of the recipe is replaced without an error.


def test_a_run_of_a_named_task_accepts_options_of_the_general_recipe(repository: pathlib.Path, tmp_path: pathlib.Path):
    sick = recipe(repository, 'sick.py:e', data='sick', init='small')
    assert sick.task.columns == () and sick.task.long == 'truncate'
    (tmp_path / 'config.json').write_text(dump(sick))
    config = recipe(repository, 'classify.py', **{'task.columns': ('a', 'b'), 'task.long': 'windows'})
    assert merge_run_config(config, tmp_path, {'task.columns'}).task.columns == ('a', 'b')
    with pytest.raises(UserError, match=r"config\.task\.long: found 'windows', expected 'truncate'"):
        merge_run_config(config, tmp_path, {'task.long'})


def test_the_recipe_of_a_teacher_sets_what_its_task_recipe_sets(repository: pathlib.Path):
    name = f'{repository}/configs/distilbert.py:glue:rte'
    keys = Recipe(name, load_recipe(name)).command_line_keys
    assert 'task.task' in keys and not keys & {'seq_len', 'use_checkpoint', 'task.long', 'task.stride'}


def test_the_command_of_the_training_may_be_repeated_with_another_verb(repository: pathlib.Path, folder: pathlib.Path):
    again = recipe(repository, 'squad.py:v2', seq_len=256, init='small', learning_rate=1.0, epochs=9.0)
    again.task.stride = 64
    flags = {'seq_len', 'init', 'learning_rate', 'epochs', 'task.stride', 'task.version'}
    assert merge_run_config(again, folder, flags).learning_rate == 5e-5


def test_a_model_in_init_brings_its_length_and_the_options_of_its_task(
    repository: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr('bertjax.finetune.restore.huggingface_directory', str)
    model = recipe(repository, 'embed.py:pairs', seq_len=32)
    model.task.update(query_prompt='query: ', matryoshka_dims=(8, 4), dev='theirs.jsonl')
    path, facts = tmp_path / 'task.json', {'task': to_plain(model.task), 'seq_len': 32}
    config = recipe(repository, 'embed.py:pairs', init=str(tmp_path), **{'task.pool': 'cls'})
    assert merge_task_file(config) is config  # there is no task.json
    path.write_text('{"task": null, "seq_len": 64}')
    assert merge_task_file(config) is config  # the reader of task.json reports the damage
    path.write_text(json.dumps(facts))
    merged = merge_task_file(config, {'task.pool'})
    assert (merged.seq_len, merged.task.query_prompt, merged.task.matryoshka_dims) == (32, 'query: ', (8, 4))
    assert (merged.task.pool, merged.task.dev, config.task.query_prompt) == ('cls', '', '')
    assert f"config.task.pool is 'cls', but '{model.task.pool}' in {path}" in capsys.readouterr().out
    labels = recipe(repository, 'multi_label.py', init=str(tmp_path))
    path.write_text(json.dumps({'task': to_plain(labels.task) | {'threshold': 0.3}, 'seq_len': 32}))
    assert merge_task_file(labels).task.threshold == 0.3
    frozen = recipe(repository, 'ner.py:features=last')
    path.write_text(json.dumps({'task': to_plain(frozen.task), 'seq_len': 32}))
    merged = merge_task_file(recipe(repository, 'ner.py', init=str(tmp_path), run='evaluate'))
    finetuning_settings(merged).check()  # config.trainable has no effect
    assert merged.task.frozen and merged.trainable == 'all'
    for theirs, ours, message in (('b', '', "found '', expected pairs, as in"), ('', 'b', 'expected single texts')):
        model = recipe(repository, 'classify.py', **{'task.text_b': theirs})
        path.write_text(json.dumps({'task': to_plain(model.task), 'seq_len': 32}))
        config = recipe(repository, 'classify.py', init=str(tmp_path), **{'task.text_b': ours})
        with pytest.raises(UserError, match=rf'config\.task\.text_b: .*{message}'):
            merge_task_file(config)
        config.task.text_b = theirs and 'c'
        assert merge_task_file(config).task.text_b == config.task.text_b
    path.write_text(json.dumps(facts))
    with pytest.raises(UserError, match="found 'squad', expected 'embed', as in"):
        merge_task_file(recipe(repository, 'squad.py', init=str(tmp_path)))


def test_the_results_of_another_dataset_are_kept_apart(repository: pathlib.Path, tmp_path: pathlib.Path):
    results, config = {}, recipe(repository, 'classify.py', **{'task.dataset': 'imdb'})
    assert describe_other_data(finetuning_settings(config), tmp_path, results) is None
    config.task.dataset = 'yelp_polarity_reviews'
    assert describe_other_data(finetuning_settings(config), tmp_path, results) == ' task.dataset=yelp_polarity_reviews'


def test_all_records_of_another_file_are_dev(repository: pathlib.Path, tmp_path: pathlib.Path, capsys, monkeypatch):
    """Only without a dev file, and not for a folder, the data of the run or data that may be a copy of them."""
    monkeypatch.setenv('HOME', str(tmp_path))
    counts = {'mails.csv': 40, 'copy.csv': 40, 'new.csv': 41, 'dev.csv': 2, 'folder/train.csv': 40}
    for name, count in counts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('text,label\n' + ''.join(f'text {i},{i % 2}\n' for i in range(count)))
    (tmp_path / 'rows').mkdir()
    (tmp_path / 'rows' / 'train.jsonl').write_text('{"text": "a", "label": 1}\n')
    (tmp_path / 'config.json').write_text(dump(recipe(repository, 'classify.py', data=str(tmp_path / 'mails.csv'))))

    def sizes(data: str, **changes: str) -> tuple[int, int, bool]:
        config = recipe(repository, 'classify.py', data=data, **changes)
        task = evaluation_settings(config, tmp_path, {'data', *changes}).build_task()
        printed = f'dev is all records of {data}, because the run was trained on {tmp_path / "mails.csv"}\n'
        return len(task.records('train')), len(task.records('dev')), printed in capsys.readouterr().out

    assert sizes(f'{tmp_path}/new.csv') == (41, 41, True)
    assert sizes(f'{tmp_path}/rows') == (1, 1, True)
    assert sizes(f'{tmp_path}/new.csv', **{'task.dev': 'dev.csv'}) == (41, 2, False)
    for same in ('', '~/mails.csv', f'{tmp_path}/folder', f'{tmp_path}/copy.csv'):
        train, dev, printed = sizes(same)
        assert train + dev == 40 and not printed
    missing = recipe(repository, 'classify.py', data='missing.csv', input='mails.txt')  # its data are not read
    assert evaluation_settings(missing, tmp_path).data == 'missing.csv'
    for data, train_file in (('folder', ''), ('.', 'mails.csv'), ('moved.csv', '')):
        trained = recipe(repository, 'classify.py', data=f'{tmp_path}/{data}', **{'task.train': train_file})
        (tmp_path / 'config.json').write_text(dump(trained))
        assert sum(sizes(f'{tmp_path}/mails.csv')[:2]) == 40
    for name in ('pairs.jsonl', 'others.jsonl'):
        (tmp_path / name).write_text(json.dumps({'anchor': name, 'positive': 'b'}) + '\n')
    (tmp_path / 'config.json').write_text(dump(recipe(repository, 'embed.py', data=str(tmp_path / 'pairs.jsonl'))))
    others = recipe(repository, 'embed.py', data=str(tmp_path / 'others.jsonl'))
    assert evaluation_settings(others, tmp_path, {'data'}).build_task().records('dev')[0].text == 'others.jsonl'


def test_all_records_of_a_file_are_dev_after_a_training_from_a_bucket(
    repository: pathlib.Path, tmp_path: pathlib.Path, bucket
):
    bucket.put({'mails/train.csv': b'text,label\na,1\n'})
    (tmp_path / 'copy.csv').write_text('text,label\na,1\n')
    (tmp_path / 'new.csv').write_text('text,label\nb,2\n')
    for trained, new_dev in (('mails', 'new.csv'), ('mails/train.csv', 'new.csv'), ('moved', '')):
        (tmp_path / 'config.json').write_text(dump(recipe(repository, 'classify.py', data=f's3://bucket/{trained}')))
        for name, dev in (('new.csv', new_dev), ('copy.csv', '')):
            other = recipe(repository, 'classify.py', data=f'{tmp_path}/{name}')
            assert evaluation_settings(other, tmp_path, {'data'}).task['dev'] == dev


def test_the_results_of_other_options_are_kept_apart(repository: pathlib.Path, tmp_path: pathlib.Path):
    trained = recipe(repository, 'multi_label.py', data=str(tmp_path), **{'task.text_a': 'body'})
    (tmp_path / 'config.json').write_text(dump(trained))
    other = recipe(repository, 'multi_label.py', **{'task.threshold': 0.3, 'task.label_columns': ('a', 'b')})
    described = []
    for keys in ((), ('task.threshold',), ('task.threshold', 'task.label_columns', 'task.text_a')):
        settings = evaluation_settings(other, tmp_path, keys)
        described.append(describe_other_data(settings, tmp_path, {}))
    options = "task.text_a=text task.label_columns=['a', 'b'] task.threshold=0.3"
    assert described == [None, f'{tmp_path} task.threshold=0.3', f'{tmp_path} {options}']
    tagging = recipe(repository, 'ner.py', **{'task.input_format': 'words'})
    (tmp_path / 'config.json').write_text(dump(recipe(repository, 'ner.py', data=str(tmp_path))))
    settings = evaluation_settings(tagging, tmp_path, {'task.input_format'})
    assert describe_other_data(settings, tmp_path, {}) is None
