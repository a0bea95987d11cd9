"""Tests that rows from a Python program are written as files that the task reads."""

import json
import pathlib

import numpy as np
import pytest

import bertjax
from bertjax.config.plain import dump
from bertjax.corpus.sources import CorpusOptions, parse_mixture, resolve_sources
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.workdir.files import read_recorded_config
from bertjax.workdir.rows import write_rows


def test_rows_can_be_the_diagnostic_set_of_glue(tmp_path):
    rows = [{'premise': 'it rains', 'hypothesis': 'it pours', 'label': 'neutral'}]
    recipe = write_rows(bertjax.recipe('glue:mnli', data={'train': rows, 'ax': rows}), tmp_path)
    (record,) = GlueTask(recipe.config.data, 32, task='mnli').records('ax')
    assert (record.first, record.second) == ('it rains', 'it pours')


@pytest.mark.parametrize('dev', ['dev', 'dev_matched', 'validation_matched', 'valid', 'val_matched'])
def test_rows_of_mnli_can_have_each_usual_name_of_a_split(tmp_path, dev: str):
    rows = [{'premise': 'it rains', 'hypothesis': 'it pours', 'label': 'neutral'}]
    recipe = write_rows(
        bertjax.recipe('glue:mnli', data=dict.fromkeys(['train', dev, 'dev_mismatched', 'test'], rows)), tmp_path
    )
    task = GlueTask(recipe.config.data, 32, task='mnli')
    assert task.splits() == ['train', 'dev', 'dev_mismatched']
    assert task.server_splits() == ['test']  # not the diagnostic set, which is the split test of its own dataset


def test_dates_are_text_and_paths_do_not_depend_on_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {'text': 'a', 'label': 'b', 'day': np.datetime64('2024-01-02', 'ns'), 'none': np.datetime64('NaT', 'ns')}
    row |= {'days': np.array(['2024-01-02'], 'datetime64[D]'), 'exact': np.datetime64('1970-01-02', 'ps')}
    row |= {'weeks': np.timedelta64(1, 'W'), 'years': np.array([4, 'NaT'], 'timedelta64[Y]')}
    recipe = write_rows(bertjax.recipe('classify', data={'train': [row]}), pathlib.Path('run'))
    monkeypatch.chdir('/')
    written = json.loads((pathlib.Path(recipe.config.data) / 'train.jsonl').read_text())
    text = {'text': 'a', 'label': 'b', 'day': '2024-01-02 00:00:00', 'none': None, 'days': ['2024-01-02']}
    text |= {'exact': '1970-01-02 00:00:00', 'weeks': '7 days, 0:00:00', 'years': ['1460 days, 23:16:48', None]}
    assert written == text


@pytest.mark.parametrize('name', ['bs=32', 'lr=1e-4,bs=32', '[a],*'])
def test_a_workdir_of_any_name_can_have_the_rows_of_a_corpus(tmp_path, name: str):
    recipe = write_rows(bertjax.recipe('pretrain_tiny', corpus=[{'text': 'it rains'}]), tmp_path / name)
    ((spec, _),) = parse_mixture(recipe.config.corpus)
    (source,) = resolve_sources(spec, CorpusOptions())
    assert source.path.startswith(str(tmp_path / name))


def test_the_rows_of_a_moved_workdir_are_found(tmp_path):
    rows = [{'text': 'a', 'label': 'x'}, {'text': 'b', 'label': 'y'}]
    recipe = write_rows(bertjax.recipe('classify', data=rows), tmp_path / 'old')
    (tmp_path / 'old' / 'config.json').write_text(dump(recipe.config))
    (tmp_path / 'old').rename(tmp_path / 'new')
    data = pathlib.Path(read_recorded_config(tmp_path / 'new' / 'config.json')['data'])
    assert data.is_relative_to(tmp_path / 'new') and (data / 'train.jsonl').exists()
