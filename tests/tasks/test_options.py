"""Tests what the options of each kind of task affect."""

import pathlib
import pickle

import pytest

from bertjax.config.schema import Change, Trained
from bertjax.errors import UserError
from bertjax.tasks.registry import KINDS, build_task, options

PAIR_COLUMNS = ['anchor', 'positive', 'negative', 'text_a', 'text_b', 'label', 'train', 'dev', 'test']
READING = {
    'glue': [],
    'classification': ['text_a', 'text_b', 'label', 'train', 'dev', 'test', 'columns', 'format', 'dataset'],
    'multi_label': [
        'text_a',
        'text_b',
        'label',
        'train',
        'dev',
        'test',
        'columns',
        'format',
        'dataset',
        'label_columns',
        'separator',
        'threshold',
    ],
    'squad': ['train_file', 'dev_file', 'test_file', 'n_best', 'max_answer'],
    'tagging': ['word_column', 'tag_column', 'comment', 'words', 'tags', 'tag_names', 'input_format'],
    'multiple_choice': ['layout'],
    'relation': ['text_a', 'label'],
    'embed': [*PAIR_COLUMNS, 'normalize', 'text'],
    'rerank': [*PAIR_COLUMNS, 'activation', 'candidates', 'candidate_count'],
    'late_interaction': PAIR_COLUMNS,
}
MODEL = {
    'glue': ['bilstm_units'],
    'classification': ['bilstm_units', 'metric'],
    'multi_label': ['bilstm_units', 'metric'],
    'squad': ['bilstm_units'],
    'tagging': ['layers', 'bilstm_units', 'frozen'],
    'multiple_choice': [],
    'relation': ['markers', 'pool', 'metric'],
    'embed': ['pool', 'layers'],
    'rerank': [],
    'late_interaction': ['dim'],
}
NAMED = {'glue': ['task'], 'squad': ['version'], 'multiple_choice': ['layout']}


@pytest.mark.parametrize('kind', KINDS)
def test_each_option_declares_what_it_affects(kind: str):
    by_name = options(kind)
    assert [name for name, option in by_name.items() if option.trained is Trained.COMMAND_LINE] == READING[kind]
    assert [name for name, option in by_name.items() if option.change is Change.STATE] == MODEL[kind]
    assert [name for name, option in by_name.items() if option.named] == NAMED.get(kind, [])
    assert not {'data', 'seq_len', 'kind'} & set(by_name)


@pytest.mark.parametrize('kind', ['classification', 'multi_label', 'relation'])
def test_the_description_of_a_metric_names_the_default(kind: str):
    about, metric = options(kind)['metric'].about, build_task(kind, data='', seq_len=32).measures[0]
    assert metric == options(kind)['metric'].default or f"'' for '{metric}'" in about


def test_an_unknown_kind_is_an_error():
    for function in (options, lambda kind: build_task(kind, data='', seq_len=128)):
        with pytest.raises(UserError, match=r"config\.task\.kind: found 'translation', expected one of glue, "):
            function('translation')


@pytest.mark.parametrize('kind', KINDS)
def test_a_task_can_be_pickled(kind: str, tmp_path: pathlib.Path):
    changes = {'multiple_choice': {'layout': 'codah'}}.get(kind, {})
    task = build_task(kind, data=str(tmp_path), seq_len=128, **changes)
    assert type(pickle.loads(pickle.dumps(task))) is type(task)
