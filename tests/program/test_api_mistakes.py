"""Mistakes in calls of `bertjax.load` and of the methods of a model."""

import math
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.errors import UserError

TEXTS = ['the river runs', 'a bird sings over the old house', 'stone']


@pytest.fixture(scope='module')
def bert(trained: pathlib.Path) -> bertjax.Bert:
    return bertjax.load(trained)


def test_a_model_without_a_task_head_refuses_task_methods(bert):
    for call in (
        lambda: bert.classify('a'),
        lambda: bert.answer('who', 'a bird'),
        lambda: bert.tag('a bird'),
        lambda: bert.choose('a bird', ['sings', 'falls']),
    ):
        with pytest.raises(UserError, match='was not fine-tuned on a task'):
            call()


@pytest.mark.parametrize('count', [0, 3])
def test_each_text_needs_a_second_text(bert, count):
    for method in (bert.encode, bert.pieces, bert.spans, bert.attention):
        with pytest.raises(UserError, match=f'^pairs: found 1 entries for {count} texts, expected one for each'):
            method(TEXTS[:count], ['one'])


def test_values_are_checked_as_on_the_command_line(bert):
    for name, call in {
        'top_k': lambda: bert.fill('a [MASK]', top_k=-1),
        'jointly': lambda: bert.fill('a [MASK]', jointly='yes'),
        'tokens': lambda: bert.extend('a', tokens=0),
        'temperature': lambda: bert.extend('a', temperature=-1.0),
        'seed': lambda: bert.extend('a', seed=-1),
        'layers': lambda: bert.encode('a', layers=1.5),
        r'texts\[1\]': lambda: bert.encode(['a', None]),
        r'pairs\[0\]': lambda: bert.encode(['a'], [3]),
        'texts': lambda: bert.score(text for text in TEXTS),
        'first': lambda: bert.next_sentence(jnp.array(1), 'a'),
        'second': lambda: bert.next_sentence('a', np.array('b')),
        'pool': lambda: bert.encode(TEXTS, pool=0),
        'combine': lambda: bert.encode('a', combine=np.array(['sum', 'mean'])),
        'weights': lambda: bert.encode('a', weights=[10**5000]),
        'normalize': lambda: bert.encode('a', normalize='abc'),
    }.items():
        with pytest.raises(UserError, match=f'^{name}: found .*, expected '):
            call()
    with pytest.raises(UserError, match=r'^top_k: found 0, expected a whole number from 1 to 1,000'):
        bert.extend('a', top_k=0)
    np.testing.assert_array_equal(bert.encode('a', layers=np.int64(1)), bert.encode('a', layers=[1]))
    np.testing.assert_array_equal(bert.encode('a', layers=np.array(1)), bert.encode('a', layers=1))
    np.testing.assert_array_equal(bert.encode(np.array(TEXTS)), bert.encode(TEXTS))
    assert len(bert.fill('a [MASK]', top_k=np.int32(3))) == len(bert.fill('a [MASK]', top_k=jnp.array(3))) == 3
    assert bert.extend('a \ud800 bird', tokens=2).startswith('a \ufffd bird')


@pytest.mark.parametrize(
    'message, arguments',
    [
        ('path: found 3', {'path': 3}),
        ('path: found b', {'path': b'a'}),
        ('x …: found file name too long', {'path': 'x' * 10**6}),
        ('step: found 1.0', {'step': 1.0}),
        ('dtype: found <class', {'dtype': np.float32}),
        ('dropout: found nan', {'dropout': math.nan}),
        ('batch_size: found 2.0', {'batch_size': 2.0}),
        ('max_length: found None', {'max_length': None}),
    ],
)
def test_wrong_arguments_of_load_are_short_errors(trained, message, arguments):
    with pytest.raises(UserError, match=f'{message}.*, expected ') as refused:
        bertjax.load(**{'path': trained} | arguments)
    line = str(refused.value)
    assert '\n' not in line and len(line) < 1000


def test_a_length_without_room_for_a_token_is_refused(bert):
    with pytest.raises(UserError, match='max_length: found 3, expected 4 to '):
        bertjax.Bert(bert._model, max_length=3)


def test_an_empty_path_has_a_fix_without_a_flag():
    with pytest.raises(UserError, match=r'found nothing, .*for example out/tiny, or google-bert/'):
        bertjax.load('')


def test_a_missing_model_is_an_error(trained, tmp_path):
    with pytest.raises(UserError, match='nowhere'):
        bertjax.load(tmp_path / 'nowhere')
    with pytest.raises(UserError):
        bertjax.load(tmp_path)
    shutil.copy(trained / 'config.json', tmp_path)
    with pytest.raises(UserError, match='a workdir without a model yet'):
        bertjax.load(tmp_path)
