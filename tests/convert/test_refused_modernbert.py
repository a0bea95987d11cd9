"""Tests that unknown families and unsupported features of ModernBERT are refused."""

import json
import re

import pytest
import transformers

import bertjax
from bertjax.convert.huggingface.families import FAMILIES
from bertjax.convert.load import read_config
from bertjax.errors import UserError

SIZES = dict(
    vocab_size=100, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=64,
)  # fmt: skip
FULL, SLIDING = 'full_attention', 'sliding_attention'
ROPE = {FULL: {'rope_type': 'default', 'rope_theta': 2e4}, SLIDING: {'rope_theta': 300.0}}


@pytest.fixture
def write(tmp_path):
    def write(**values):
        (tmp_path / 'config.json').write_text(json.dumps({**SIZES, **values}))
        return tmp_path

    return write


@pytest.mark.parametrize(
    'model_type, name',
    [
        ('deberta-v2', 'DebertaV2ForMaskedLM'),
        ('electra', 'ElectraForPreTraining'),
        ('neobert', 'NeoBERTLMHead'),
        ('eurobert', 'EuroBertForMaskedLM'),
        ('modernbert-decoder', 'ModernBertDecoderForCausalLM'),
        ('mystery', ''),
        (None, 'ElectraModel'),
        (['x'], 'X'),
    ],
)
def test_the_error_for_an_unknown_family_lists_the_known_families(write, model_type, name):
    directory = write(model_type=model_type, **({'architectures': [name]} if name else {}))
    known = ', '.join(family.name for family in FAMILIES)
    found = f'{directory}/config.json: found model_type {model_type!r}, expected one of {known}; '
    with pytest.raises(UserError, match=re.escape(found)) as error:
        bertjax.load(directory)
    assert name in str(error.value) and '\n' not in str(error.value)


def test_a_class_name_replaces_a_missing_model_type(write):
    with pytest.raises(UserError, match=r'found model_type None, .* ElectraModel computes another function'):
        bertjax.load(write(architectures=['ElectraModel']))
    assert read_config(write(architectures=['BertForMaskedLM'])).num_layers == 4


@pytest.mark.parametrize(
    'values, message',
    [
        ({'rope_scaling': {'type': 'linear', 'factor': 2}}, r'found rope_scaling \{.*, expected rotations without'),
        ({'rope_parameters': {**ROPE, FULL: {'rope_type': 'yarn', 'factor': 2}}}, r"found rope_parameters .*'yarn'"),
        (
            {'rope_parameters': {**ROPE, FULL: {'partial_rotary_factor': 0.5}}},
            "found rope_parameters .*'partial_rotary",
        ),
        (
            {'rope_parameters': {'rope_theta': 1e4}},
            r'found rope_parameters .*, expected a rope_theta and the rope_type',
        ),
        ({'rope_parameters': {FULL: 3}}, 'found rope_parameters'),
        ({'rope_parameters': {FULL: {'rope_theta': 'x'}}}, "found global_rope_theta 'x', expected a number from 1"),
        ({'local_rope_theta': None}, 'found local_rope_theta None, expected a number'),
        ({'decoder_bias': False}, 'found decoder_bias False, expected True'),
        ({'mlp_bias': True}, 'found attention_bias False, mlp_bias True, classifier_bias False, expected the same'),
        ({'attention_bias': [1]}, r'found attention_bias \[1\], mlp_bias False'),
        (
            {'layer_types': [SLIDING] * 3 + [FULL]},
            f"found layer_types .* expected 4 names: '{FULL}' for the first and every n-th",
        ),
        ({'layer_types': [FULL, SLIDING, SLIDING, 'x']}, 'found layer_types'),
        ({'layer_types': [FULL]}, 'found layer_types'),
        ({'layer_types': 7}, 'found layer_types 7'),
        ({'hidden_activation': 'relu'}, "found hidden_activation 'relu', expected one of gelu, silu"),
        ({'classifier_activation': 'silu'}, "found classifier_activation 'silu', expected 'gelu'"),
        ({'classifier_pooling': 'max'}, "found classifier_pooling 'max', expected one of cls, mean"),
        ({'local_attention': 0}, 'found local_attention 0, expected at least 1'),
        ({'local_attention': [64, 64]}, r'found local_attention \[64, 64\], expected a whole number'),
        ({'global_attn_every_n_layers': 'x'}, "found global_attn_every_n_layers 'x', expected a whole number"),
        ({'tie_word_embeddings': 'x'}, "found tie_word_embeddings 'x', expected True or False"),
        ({'norm_eps': 'x'}, "found norm_eps 'x', expected a number"),
        ({'num_hidden_layers': 'x'}, "found num_hidden_layers 'x', expected"),
    ],
)
def test_unsupported_features_are_refused_by_name(write, values, message):
    directory = write(model_type='modernbert', architectures=['ModernBertForMaskedLM'], **values)
    with pytest.raises(UserError, match='config.json: ' + message) as error:
        read_config(directory)
    assert '\n' not in str(error.value) and error.value.fix


@pytest.mark.parametrize(
    'values, every, window',
    [
        ({}, 3, 128),
        ({'rope_parameters': ROPE, 'layer_types': [FULL, SLIDING] * 2}, 2, 128),
        ({'layer_types': [FULL, *[SLIDING] * 3]}, 4, 128),
        ({'layer_types': [SLIDING] * 4}, 0, 128),
        ({'layer_types': [FULL] * 4}, 3, 0),
        ({'global_attn_every_n_layers': 2, 'rope_scaling': None, 'sparse_prediction': True}, 2, 128),
    ],
)
def test_supported_layouts_of_layers_are_read(write, values, every, window):
    config = read_config(write(model_type='modernbert', **values))
    assert (config.global_every, config.attention_window) == (every, window)
    rope = values.get('rope_parameters')
    assert (config.rope_theta, config.rope_local_theta) == ((2e4, 300.0) if rope else (160_000.0, 10_000.0))


def test_a_config_that_lacks_keys_has_the_defaults_of_modernbert(write):
    directory = write(model_type='modernbert', architectures=['ModernBertForMaskedLM'])
    values = json.loads((directory / 'config.json').read_text())
    del values['max_position_embeddings']
    (directory / 'config.json').write_text(json.dumps(values))
    config, theirs = read_config(directory), transformers.ModernBertConfig(**SIZES | {'max_position_embeddings': 8192})
    assert (config.layer_norm_eps, config.max_positions) == (theirs.norm_eps, 8192)
    assert (config.dropout, config.attention_dropout) == (theirs.mlp_dropout, theirs.attention_dropout) == (0, 0)
    assert transformers.ModernBertConfig().max_position_embeddings == 8192
