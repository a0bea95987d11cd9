"""What each option of each kind decides, and so when it may change."""

import pytest

from bertjax.errors import UserError
from bertjax.tasks.registry import KINDS, build_task, keys, options

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
    'multiple_choice': [],
    'relation': ['text_a', 'label'],
}
MODEL = {
    'glue': ['bilstm_units'],
    'classification': ['bilstm_units'],
    'multi_label': ['bilstm_units'],
    'squad': ['bilstm_units'],
    'tagging': ['layers', 'bilstm_units', 'frozen'],
    'multiple_choice': [],
    'relation': ['markers', 'pool'],
}
NAMED = {'glue': ['task'], 'squad': ['version'], 'multiple_choice': ['layout']}


@pytest.mark.parametrize('kind', KINDS)
def test_what_options_decide(kind: str):
    assert keys(kind, 'reading') == [f'task.{name}' for name in READING[kind]]
    assert keys(kind, 'model') == [f'task.{name}' for name in MODEL[kind]]
    assert [name for name, option in options(kind).items() if option.named] == NAMED.get(kind, [])
    assert not {'data', 'seq_len', 'kind'} & set(options(kind))


def test_an_unknown_kind():
    for ask in (options, lambda kind: keys(kind, 'model'), lambda kind: build_task(kind, data='', seq_len=128)):
        with pytest.raises(UserError, match=r"config\.task\.kind: found 'translation', expected one of glue, "):
            ask('translation')
