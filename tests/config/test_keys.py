"""Tests that docs/keys.md is up to date."""

import inspect
import pathlib

import pytest

from bertjax.config.check import check_used, config_keys
from bertjax.config.inference import INFERENCE_KEYS
from bertjax.config.recipes import distillation, finetuning_config, inference_config, phase, pretraining_config
from bertjax.config.tables import page
from bertjax.config.verb import EXAMPLES, Verb
from bertjax.errors import UserError
from bertjax.tasks.registry import KINDS
from bertjax.usage import load_verb, verbs


def test_the_page_of_keys_is_up_to_date(repository: pathlib.Path):
    """`python -m bertjax.config.tables > docs/keys.md` regenerates the page."""
    assert (repository / 'docs' / 'keys.md').read_text(encoding='utf-8') == page() + '\n'


def test_every_key_has_a_line_of_documentation():
    configs = [pretraining_config(), pretraining_config(phases=(phase(),)), *map(finetuning_config, KINDS)]
    configs += [distillation(finetuning_config('glue')), *map(inference_config, INFERENCE_KEYS)]
    known = {name: key for config in configs for name, key in config_keys(config).items()}
    assert len(known) > 180 and not [name for name, key in known.items() if not key.about]
    text = page()
    assert not [
        name for name in known if f'| `{name.replace("phases[0]", "phases")}` |' not in text and name != 'task.kind'
    ]


def test_a_key_is_used_with_values_that_another_key_allows():
    names = set()
    for config in (pretraining_config(), *map(finetuning_config, KINDS), *map(inference_config, INFERENCE_KEYS)):
        known = config_keys(config)
        for name, key in known.items():
            other, *values = key.used_with or ('',)
            names |= {name} if other else set()
            assert not other or all(map(known[other].allowed.contains, values))
    assert names == {
        'schedule.power', 'schedule.decay', 'schedule.decay_fraction', 'optimizer.momentum', 'optimizer.adam_lr_ratio',
        'vocab.model_type', 'vocab.sample_sentences', 'pairs.short_probability', 'masking.max_span', 'push_private',
        'tracker_project', 'tracker_run', 'step', 'split', 'input', 'topology', 'find_batch', 'steps', 'benchmark',
        'ensemble', 'extract.calibration', 'fill.second', 'fill.field', 'fill.pair_field', 'fill.top_k', 'fill.jointly',
        'fill.tokens', 'fill.temperature', 'fill.sample', 'fill.seed', 'attention.show',
    }  # fmt: skip


def test_the_number_of_shown_texts_has_no_effect_with_given_texts():
    config = inference_config('attention', show=3)
    check_used(config, {'attention.show'})
    config.attention.texts = ('a', 'b')
    with pytest.raises(
        UserError, match=r"show: found 3 with .*texts=\['a', 'b'\], .* set --config.attention.texts to \[\]"
    ):
        check_used(config, {'attention.show'})


@pytest.mark.parametrize(
    ('verb', 'used'),
    [
        ('evaluate', {'step', 'split'}),
        ('predict', {'step', 'split', 'input'}),
        ('export', {'step'}),
        ('doctor', {'step', 'split', 'input'}),
        ('show', {'step', 'split', 'input'}),
        ('finetune', set()),
        ('report', set()),
    ],
)
def test_the_keys_of_a_verb(verb: str, used: set[str]):
    config = finetuning_config('glue')
    config.run, config.step, config.split, config.input = verb, 5, 'test', 'a.txt'
    check_used(config, used)
    for name in {'step', 'split', 'input'} - used:
        with pytest.raises(UserError, match=f'config.{name}: .* with config.run={verb!r}'):
            check_used(config, {name})


def test_a_key_that_a_phase_uses_has_an_effect():
    config, flags = pretraining_config(phases=(phase(),)), {'schedule.decay_fraction'}
    config.schedule.decay_fraction = 0.2
    with pytest.raises(UserError, match=r'schedule\.decay_fraction: found 0\.2 with config\.schedule\.name=.linear'):
        check_used(config, flags)
    check_used(config, ())  # a recipe may set it
    config.phases[0].schedule = 'wsd'
    check_used(config, flags)


def test_the_steps_of_a_pre_training_have_no_effect_with_epochs():
    config = pretraining_config(epochs=2.0, steps=100)
    with pytest.raises(UserError, match=r'steps: found 100 with config\.epochs=2\.0, .*--config\.epochs to 0'):
        check_used(config, {'steps'})
    check_used(config, {'epochs'})


def test_a_key_that_every_phase_overrides_is_refused():
    phases = (phase(steps='90%', seq_len=64), phase(steps='10%', seq_len=128))
    config = pretraining_config(phases=phases, seq_len=32)
    with pytest.raises(UserError, match=r'config\.seq_len: found a value, .*--config\.phases\[0\]\.seq_len'):
        check_used(config, {'seq_len'})
    check_used(config, {'seq_len', 'phases[0].seq_len', 'phases[1].seq_len'})  # perhaps keys that several runs share
    config.phases[1].seq_len = 0
    check_used(config, {'seq_len', 'batch_size'})


def test_each_verb_declares_what_it_needs():
    for module in map(load_verb, verbs()):
        assert isinstance(module.VERB, Verb) and module.VERB.needs in ('', *EXAMPLES, *INFERENCE_KEYS)
        assert set(inspect.signature(module.run).parameters) <= {
            'config',
            'workdir',
            'recipe',
            'flag_keys',
            'command_line_keys',
        }
