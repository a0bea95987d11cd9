"""Tests that a damaged config.json, task.json or results.json gives an error of one line, never a traceback."""

import contextlib
import dataclasses
import json
import pathlib
import random
import re
from typing import Any

import pytest
from ml_collections import ConfigDict

from bertjax.checkpoint.steps import DAMAGED
from bertjax.config.files import load_recipe
from bertjax.config.plain import dump, to_plain
from bertjax.config.recipes import pretraining_config, two_phases
from bertjax.errors import UserError
from bertjax.finetune.restore import merge_run_config
from bertjax.finetune.settings import finetuning_settings
from bertjax.model.config import BertConfig
from bertjax.pretrain.chance_baselines import ChanceBaselines, read_chance_baselines
from bertjax.tasks.relation.task import RelationTask
from bertjax.workdir.files import read_recorded_config, read_recorded_results, read_recorded_task
from bertjax.workdir.lock import check_workdir_kind

RAW = [b'', b'{', b'[]', b'null', b'"text"', b'\xff{}', b'[' * 100_000, b'{"a":' * 5000 + b'1' + b'}' * 5000]
ODD = [None, True, -1, 2**70, 1.5, float('nan'), '', 'x', [], ['a'], [None], {}, {'a': 1}, {'kind': 'squad'}]


@pytest.fixture(scope='module')
def recipe(repository: pathlib.Path) -> ConfigDict:
    return load_recipe(f'{repository}/configs/glue.py:rte')


def damaged(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Returns a copy of `value` with one value, at any depth of objects, replaced or removed."""
    changed = json.loads(json.dumps(value))
    parent, key = changed, rng.choice(list(changed))
    while isinstance(parent[key], dict) and parent[key] and rng.random() < 0.6:
        parent, key = parent[key], rng.choice(list(parent[key]))
    if rng.random() < 0.2:
        del parent[key]
    else:
        parent[key] = rng.choice(ODD)
    return changed


@pytest.mark.parametrize('content', RAW, ids=range(len(RAW)))
def test_a_file_without_a_json_object_is_an_error(content: bytes, recipe: ConfigDict, tmp_path: pathlib.Path):
    task = finetuning_settings(recipe).build_task()
    reads = {
        'config.json': lambda path: merge_run_config(recipe, path.parent),
        'task.json': lambda path: read_recorded_task(path, task),
        'results.json': read_recorded_results,
    }
    for name, read in reads.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf'/{name}: found (an empty file|no JSON|a JSON)'):
            read(tmp_path / name)


def test_a_damaged_config_is_valid_or_an_error(recipe: ConfigDict, tmp_path: pathlib.Path):
    rng, refused = random.Random(0), 0
    (tmp_path / 'config.json').write_text(dump(recipe))
    finetuning_settings(merge_run_config(recipe, tmp_path)).check()
    for _ in range(120):
        (tmp_path / 'config.json').write_text(json.dumps(damaged(to_plain(recipe), rng)))
        try:
            finetuning_settings(merge_run_config(recipe, tmp_path, {'seq_len'})).check()
        except UserError as error:
            refused += 1
            assert 'config' in str(error)
    assert refused > 60


@pytest.mark.parametrize('task', [None, 5, {}, {'kind': ['glue']}, {'kind': 'none'}, {'kind': 'glue', 'x': 1}])
def test_a_damaged_task_in_a_config_of_any_kind_is_an_error(task: Any, recipe: ConfigDict, tmp_path: pathlib.Path):
    (tmp_path / 'config.json').write_text(json.dumps({**to_plain(recipe), 'task': task}))
    with pytest.raises(UserError, match='task'):
        read_recorded_config(tmp_path / 'config.json')


def test_a_damaged_config_of_a_pre_training_is_valid_or_an_error(tmp_path: pathlib.Path):
    rng, refused = random.Random(0), 0
    whole = {**to_plain(pretraining_config('tiny', phases=two_phases())), 'steps': 24, 'fingerprints': {}}
    whole['model']['vocab_size'] = 400
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(whole))
    assert read_chance_baselines(tmp_path) == ChanceBaselines('nsp')  # There is no text.
    for _ in range(120):
        path.write_text(json.dumps(damaged(whole, rng)))
        try:
            read_chance_baselines(tmp_path)
        except UserError as error:
            refused += 1
            assert 'config' in str(error)
    assert refused > 60


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'seeds': 3}, r'config\.json: seeds: found 3, expected keys such as seeds\.init; restore the file'),
        ({'steps': {}}, r'config\.json: steps: found no such key, expected a number of steps.*; restore'),
        ({'steps': None}, r'config\.json: steps: found None, expected a number of steps'),
        ({'phases': [3]}, r'config\.json: phases: found \[3\], expected a list of dicts'),
        ({'phases': [{'seq_len': []}]}, r'config\.json: phases\[0\]\.seq_len: found \[\], expected a whole number'),
        ({'phases': [{'steps': '100%'}]}, r'config\.json: phases\[0\]\.reset_optimizer: found no such key'),
        ({'phases': [{'seq_len': -3}]}, r'config\.json: phases\[0\]\.seq_len: found -3'),
        ({'vocab': {'pieces': 3}}, r'config\.json: vocab\.pieces: found an unknown config key'),
        ({'task': {'kind': 'glue'}}, r"config\.json: found the key 'task', expected the config of a pre-training"),
    ],
)
def test_an_impossible_value_in_the_config_of_a_pre_training_is_an_error(
    change: dict, message: str, tmp_path: pathlib.Path
):
    (tmp_path / 'config.json').write_text(json.dumps({**to_plain(pretraining_config('tiny')), **change}))
    with pytest.raises(UserError, match=message):
        read_chance_baselines(tmp_path)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            {'seq_len': 'long'},
            r"config\.json: seq_len: found 'long', expected a whole number from 4 .*; restore the file",
        ),
        ({'seq_len': True}, 'seq_len: found True'),
        ({'model': []}, r'config\.json: model: found \[\], expected keys such as model\.'),
        ({'model': {'dropout': '0'}}, r"config\.json: model\.dropout: found '0', expected a number"),
        ({'task': ['glue']}, 'task: found'),
        ({'task': {'kind': 'glue', 'tricks': 1}}, r'config\.json: task: found the key tricks, expected the options'),
        ({'task': {'kind': 'squad'}}, r"config\.task\.kind: found 'glue', expected 'squad', as in .*config\.json"),
    ],
)
def test_a_value_of_another_type_is_an_error(change: dict, message: str, recipe: ConfigDict, tmp_path: pathlib.Path):
    (tmp_path / 'config.json').write_text(json.dumps({**to_plain(recipe), **change}))
    with pytest.raises(UserError, match=message):
        merge_run_config(recipe, tmp_path)


@pytest.mark.parametrize('key', ['task', 'data', 'init', 'tokenizer', 'seq_len', 'layer_decay'])
def test_a_missing_key_is_an_error(key: str, recipe: ConfigDict, tmp_path: pathlib.Path):
    (tmp_path / 'config.json').write_text(json.dumps({k: v for k, v in to_plain(recipe).items() if k != key}))
    with pytest.raises(UserError, match=rf'config\.json: (found no key task|{key}: found no such key), expected'):
        merge_run_config(recipe, tmp_path)


def test_a_damaged_task_is_valid_or_an_error(recipe: ConfigDict, tmp_path: pathlib.Path):
    task, rng, refused = finetuning_settings(recipe).build_task(), random.Random(1), 0
    recorded = {'task': to_plain(recipe.task), 'learned': {'labels': ['no', 'yes']}}
    recorded |= {'encoder': dataclasses.asdict(BertConfig()), 'seq_len': 32}
    (tmp_path / 'task.json').write_text(json.dumps(recorded))
    assert read_recorded_task(tmp_path / 'task.json', task) == recorded
    for _ in range(120):
        (tmp_path / 'task.json').write_text(json.dumps(damaged(recorded, rng)))
        try:
            read_recorded_task(tmp_path / 'task.json', task)
        except UserError as error:
            refused += 1
            assert 'task.json' in str(error)
    assert refused > 40


@pytest.mark.parametrize(
    ('learned', 'message'),
    [
        ({'null_threshold': '1.5'}, r"task\.json: learned\.null_threshold: found '1\.5', expected a number; restore"),
        ({'null_threshold': True}, r'task\.json: learned\.null_threshold: found True'),
        ({'labels': ['no', 'yes']}, r"^config\.task\.negative: found 'none', expected one of no, yes"),
    ],
)
def test_a_wrong_learned_state_and_a_wrong_option_are_told_apart(learned: dict, message: str, tmp_path: pathlib.Path):
    recorded = {'task': {}, 'learned': learned, 'encoder': dataclasses.asdict(BertConfig()), 'seq_len': 32}
    (tmp_path / 'task.json').write_text(json.dumps(recorded))
    with pytest.raises(UserError, match=message):
        read_recorded_task(tmp_path / 'task.json', RelationTask('', 32, negative='none'))


@pytest.mark.parametrize('splits', [[], 'dev', {'dev': 0.5}, {'dev': None}])
def test_damaged_results_are_errors(splits: Any, tmp_path: pathlib.Path):
    (tmp_path / 'results.json').write_text(json.dumps({'splits': splits}))
    with pytest.raises(UserError, match=rf'results\.json: splits: found {re.escape(repr(splits))}'):
        read_recorded_results(tmp_path / 'results.json')


def test_only_a_pre_training_and_a_benchmark_share_a_workdir(tmp_path: pathlib.Path):
    kinds = ('a pre-training', 'a fine-tuning', 'a sweep', 'a benchmark')

    def allowed() -> list[str]:
        names = []
        for kind in kinds:
            with contextlib.suppress(UserError):
                check_workdir_kind(tmp_path, kind)
                names.append(kind)
        return names

    assert allowed() == [*kinds]
    (tmp_path / 'benchmark.json').write_text('{}')
    assert allowed() == ['a pre-training', 'a benchmark']
    (tmp_path / 'checkpoints' / DAMAGED / '3').mkdir(parents=True)
    assert allowed() == ['a pre-training', 'a fine-tuning']  # the trainer compares the run with its checkpoint
    (tmp_path / 'config.json').write_text('{"steps": 3}')
    assert allowed() == ['a pre-training', 'a benchmark']
    (tmp_path / 'config.json').write_text('{"task": {}}')
    assert allowed() == ['a fine-tuning']
    (tmp_path / 'trials').mkdir()
    assert allowed() == ['a sweep']
