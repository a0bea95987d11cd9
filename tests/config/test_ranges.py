"""Tests that every config key declares a range. An error names the key of a value outside it."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path
from test_recipes import CASES, load

from bertjax.config import ranges
from bertjax.config.check import check_ranges, config_keys
from bertjax.config.plain import flatten
from bertjax.config.recipes import finetuning_config, phase, pretraining_config, two_phases
from bertjax.config.schema import key, keys_of
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
from bertjax.pretrain.settings import pretraining_settings
from bertjax.tasks.registry import KINDS

ODD = (0, -1, 0.5, 10**15, 10**5000, 1e300, math.nan, -math.inf, True, None)
ODD += ('', 'abc', 'a\0b', '10%', '-1epochs', (), (math.nan,), ('x',), ({},), {'a': 1})


def test_a_whole_number_stands_for_a_special_float():
    """YAML files and Python programs have 0 and -1, where flags give 0.0 and -1.0."""
    assert ranges.special(0.0, 'x').contains(0) and not ranges.special(0.0, 'x').contains(False)
    assert not ranges.special(0, 'x').contains(0.0)


# Values that only a declared range refuses.
NONSENSE = {
    'pretraining': {
        'optimizer.eps': (-1.0, 0.0, math.nan, 1e-300),
        'optimizer.weight_decay': (-1.0, math.nan, math.inf),
        'optimizer.clip_norm': (-1.0, math.nan),
        'optimizer.b1': (-1.0, 1.0, 2.0),
        'optimizer.b2': (-1.0, 1.0, math.nan),
        'schedule.power': (-1.0, math.nan, math.inf),
        'learning_rate': (math.inf, 1e30, math.nan),
        'eval_examples': (-1, 0, 10**15),
        'epochs': (-1.0, math.nan, math.inf),
        'steps': ('nan', -5, 2**31, 'infepochs', '-1epochs'),
        'eval_every': ('nan%', '-1%', -1),
        'checkpoint_keep': (0, -1),
        'seeds.data': (-2, 2**32),
        'vocab.unused': (-1, 10**12),
        'vocab.size': (0, -1, 10**12),
        'vocab.model_type': ('word', ''),
        'vocab.sample_sentences': (0, -1),
        'model.init_stddev': (math.inf, math.nan, 0.0),
        'model.layer_norm_eps': (math.inf, math.nan),
        'model.max_positions': (99999999999999,),
        'model.width': (10**12, -8),
        'model.dropout': (1.0, math.nan),
        'model.num_layers': (True, None, 2.0),
        'batch_size': (10**15, 0, True, None),
        'seq_len': (10**15, 7),
        'pair_plans': (99999999999999, 0),
        'mesh.data': (0, -2, 10**15),
        'data': ('a\0b',),
    },
    'finetuning': {
        'epochs': (math.nan, -1.0),
        'layer_decay': (math.nan, 0.0),
        'max_padded_lengths': (10**9, -1),
        'trainable': ('last_0', 'last_x', ''),
        'sweep.learning_rate': ((1e-5, -1.0), (math.nan,), 'abc'),
        'sweep.seeds': ((-1,), (0.5,)),
        'sweep.trainable': (('some',),),
        'sweep.together': (-1,),
        'card.license': ('MIT License\nx',),
        'use_checkpoint': ('', 'first'),
    },
}


@contextlib.contextmanager
def changed(config: ConfigDict, key: str, value: Any) -> Iterator[None]:
    """Sets one value of `config` for the duration of the block, even if ConfigDict would refuse its type."""
    parent, _, name = key.rpartition('.')
    fields = (config_path.get_value(parent, config) if parent else config)._fields
    before, fields[name] = fields[name], value
    try:
        yield
    finally:
        fields[name] = before


def check_settings(config: ConfigDict) -> None:
    """Makes all checks that need neither text nor records."""
    if 'task' in config:
        settings = finetuning_settings(config)
        for one in [trial.settings(settings) for trial in make_trials(settings)] or [settings]:
            one.check()
    else:
        pretraining_settings(config).check()


def refusal(config: ConfigDict, key: str, value: Any) -> UserError | None:
    """Returns the `UserError` for a value, or None; any other exception fails the test."""
    with changed(config, key, value):
        try:
            check_ranges(config)
            check_settings(config)
        except UserError as error:
            return error
    return None


BASES = {'pretraining': lambda: pretraining_config('tiny', phases=two_phases())}
BASES |= {kind: lambda kind=kind: finetuning_config(kind) for kind in KINDS}
WITH_SHARED_KEYS = ('pretraining', 'classification')  # The other bases test only the keys of their task.


@pytest.mark.parametrize(
    'base', [pytest.param(base, marks=pytest.mark.slow if base in WITH_SHARED_KEYS else ()) for base in BASES]
)
def test_an_odd_value_of_any_key_is_accepted_or_refused_with_the_key(base: str):
    config = BASES[base]()
    check_ranges(config)
    check_settings(config)
    known = config_keys(config)
    for name in flatten(config):
        if base not in WITH_SHARED_KEYS and not name.startswith('task.'):
            continue
        outside = [value for value in ODD if not known[name].allowed.contains(value)]
        refused = len(outside)
        # A check of a whole config is slow. One value outside the range suffices, because all give the same error.
        for value in [*outside[:1], *(value for value in ODD if value not in outside)]:
            error = refusal(config, name, value)
            if error is None:
                continue
            refused += value not in outside
            assert '\n' not in str(error) and len(str(error)) < 700, (name, value)
            named = 'config.' if known[name].allowed.contains(value) else f'config.{name}'
            assert error.where.removeprefix('--').startswith(named), (name, value, str(error))
        assert refused >= 8, f'{name} accepts nearly any value'


@pytest.mark.parametrize(('base', 'key'), [(base, key) for base, keys in NONSENSE.items() for key in keys])
def test_nonsense_is_refused(base: str, key: str):
    config = pretraining_config('tiny') if base == 'pretraining' else finetuning_config('classification')
    for value in NONSENSE[base][key]:
        with changed(config, key, value), pytest.raises(UserError) as caught:
            check_ranges(config)
        assert caught.value.where == f'config.{key}'


@pytest.mark.parametrize(('path', 'argument'), [case for cases in CASES.values() for case in cases])
def test_every_key_of_every_recipe_has_a_range(path, argument: str):
    """A new key without a range fails this test. See bertjax/config/schema.py."""
    config = load(path, argument)
    assert not set(flatten(config)) - set(config_keys(config))
    check_ranges(config)


def test_every_default_lies_in_its_range():
    for config in (pretraining_config(), pretraining_config(phases=two_phases()), *(BASES[kind]() for kind in KINDS)):
        for name, known in config_keys(config).items():
            assert known.allowed.contains(known.default), name


def test_missing_and_unknown_keys_are_refused():
    config = pretraining_config('tiny')
    del config.batch_size
    with pytest.raises(UserError, match=r'config\.batch_size: found no such key, expected a whole number'):
        check_ranges(config)
    config = pretraining_config('tiny', learning_rat=1e-3)
    with pytest.raises(UserError, match=r'did you mean --config\.learning_rate\?'):
        check_ranges(config)
    config = finetuning_config('squad', max_answers=3)
    with pytest.raises(UserError, match=r'did you mean --config\.task\.max_answer\?'):
        check_ranges(config)
    config = pretraining_config('tiny', phases=(phase(steps='100%', seqlen=64),))
    with pytest.raises(UserError, match=r'phases\[0\]\.seqlen.*did you mean --config\.phases\[0\]\.seq_len\?'):
        check_ranges(config)
    config = pretraining_config('tiny', phases=({'steps': '100%'},))
    with pytest.raises(UserError, match=r'config\.phases\[0\]\.\w+: found no such key'):
        check_ranges(config)


def test_a_field_must_declare_a_range():
    import dataclasses

    @dataclasses.dataclass
    class Options:
        known: bool = True
        name: str = ''
        size: int = key(1, ranges.integer(0, 2))

    assert set(keys_of(Options)) == {'known', 'name', 'size'}
    undeclared = dataclasses.make_dataclass('Undeclared', [('size', int, 1)])
    with pytest.raises(TypeError, match=r'Undeclared\.size declares no range'):
        keys_of(undeclared)


@pytest.mark.parametrize(
    ('allowed', 'inside', 'outside', 'words'),
    [
        (ranges.integer(1, 2**20), (1, 2**20), (0, 2**20 + 1, 1.0, True), 'a whole number from 1 to 1,048,576'),
        (ranges.number(0, 1), (0, 1, 0.5), (-1e-9, 1.1, math.nan, True, '1'), 'a number from 0 to 1'),
        (ranges.number(0, 1, above=True, below=True), (0.5,), (0, 1, np.ones(2)), 'a number above 0, below 1'),
        (ranges.one_of(('', 'f1')), ('', 'f1'), ('f2', None, ()), "one of '', f1"),
        (
            ranges.list_of(ranges.integer(0, 9)),
            ((), [1]),
            ((10,), 3, 'a'),
            'a list, each entry a whole number from 0 to 9',
        ),
        (ranges.duration('%'), (0, '5', '10%', 1e3), ('1epochs', -1, 1.5, '%', '1s', True), None),
        (ranges.duration('%', 'epochs'), ('1epochs', '0.5 epoch'), ('epochs', 'nanepochs', '1%%'), None),
        (ranges.text(empty=False), ('a',), ('', ' ', 'a\0', '\udc80', 3), 'text that is not empty'),
    ],
)  # fmt: skip
def test_a_range_checks_and_describes_values(allowed: ranges.Range, inside: tuple, outside: tuple, words: str | None):
    assert all(map(allowed.contains, inside)) and not any(map(allowed.contains, outside))
    assert words is None or allowed.words == words


def test_a_long_value_is_shown_in_a_few_words():
    assert ranges.format_value(10**5000) == 'a whole number of about 5000 digits'
    assert ranges.format_value('a\nb') == repr('a\nb') and len(ranges.format_value('x' * 1000)) < 70
