"""Tests that errors about RoBERTa and DistilBERT directories use the names in their files.

Models that no transformers class can represent are refused too.
"""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert.content import ExportContent
from bertjax.convert.heads import SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from bertjax.convert.huggingface.config import check_exportable
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model, read_config
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining

DISTIL = {'num_segments': 0, 'nsp': False}
ROBERTA = {'num_segments': 1, 'nsp': False}


class _TwoSeparators:
    def __init__(self, tokenizer):
        self.vocab_size, self.pad_id, self.save, self.separators = tokenizer.vocab_size, 1, tokenizer.save, 2


@pytest.fixture(params=['distilbert', 'roberta'])
def exported(request, tokenizer, small_config, make_params, tmp_path):
    """Returns the name of a model family and the directory of an exported model of this family."""
    distil = request.param == 'distilbert'
    config = small_config(**(DISTIL if distil else ROBERTA))
    tokenizer = tokenizer if distil else _TwoSeparators(tokenizer)
    export_huggingface(ExportContent(BertForPreTraining(config), make_params(config), tokenizer), tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text())['model_type'] == request.param
    return request.param, tmp_path


def _set(directory, **values):
    path = directory / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


ODD = {
    'distilbert': {
        'dim': ('x', -3, 2.5), 'n_heads': (3, None), 'n_layers': (0, 'two'), 'hidden_dim': (True,),
        'dropout': (2,), 'activation': ('silu',), 'max_position_embeddings': ('many',),
    },
    'roberta': {
        'hidden_size': ('x', -3), 'max_position_embeddings': ('many', [1]), 'pad_token_id': (-1, 'x', None),
        'type_vocab_size': ('x',), 'hidden_act': ('silu', 'relu'), 'is_decoder': (3,),
    },
}  # fmt: skip


def test_an_error_about_a_key_uses_the_name_in_the_file(exported):
    family, directory = exported
    whole = json.loads((directory / 'config.json').read_text())
    for key, values in ODD[family].items():
        for value in values:
            _set(directory, **{key: value})
            with pytest.raises(UserError, match=f'config.json: found {key} '):
                read_config(directory)
            _set(directory, **{key: whole[key]})
    read_config(directory)


NAMES = {
    'distilbert': ('distilbert.transformer.layer.1.ffn.lin1.weight', 'vocab_transform.bias', 'vocab_projector.bias'),
    'roberta': ('roberta.encoder.layer.1.intermediate.dense.weight', 'lm_head.dense.bias', 'lm_head.bias'),
}


def test_an_error_about_a_tensor_uses_the_name_in_the_file(exported):
    family, directory = exported
    whole = safetensors.numpy.load_file(directory / 'model.safetensors')
    for name in NAMES[family]:
        safetensors.numpy.save_file({**whole, name: np.ones((5, 3), np.float32)}, directory / 'model.safetensors')
        with pytest.raises(UserError, match=rf'{name}: found shape \(5, 3\)'):
            load_pretraining_model(directory)
    damaged = {**whole, NAMES[family][0]: whole[NAMES[family][0]] * np.nan}
    safetensors.numpy.save_file(damaged, directory / 'model.safetensors')
    with pytest.raises(UserError, match=f'{NAMES[family][0]}: found .* nan'):
        load_pretraining_model(directory)
    other = {name: np.ones(2, np.float32) for name in ('classifier.weight', 'cls.seq_relationship.bias')}
    safetensors.numpy.save_file({**whole, **other}, directory / 'model.safetensors')
    imported = load_pretraining_model(directory)
    assert imported.unused == ['classifier.weight', 'cls.seq_relationship.bias'] and imported.missing == []
    word = f'{family}.embeddings.word_embeddings.weight'
    tied = {'distilbert': 'vocab_projector.weight', 'roberta': 'lm_head.decoder.weight'}[family]
    safetensors.numpy.save_file({**whole, tied: whole[word] + 1}, directory / 'model.safetensors')
    with pytest.raises(UserError, match=f'{tied}: found different values, expected the values of {word}'):
        load_pretraining_model(directory)


def test_the_description_names_the_class_of_the_directory(exported):
    family, directory = exported
    description = load_pretraining_model(directory).describe('HERE')
    kind = {'distilbert': 'DistilBertForMaskedLM', 'roberta': 'RobertaForMaskedLM'}[family]
    assert re.fullmatch(
        rf'starting from HERE; \d+ tensors of its {kind} loaded; newly initialized: nothing', description
    )


@pytest.mark.parametrize(
    'changes, head, message',
    [
        ({**DISTIL, 'causal': True}, None, 'config.model.causal: found True'),
        ({**DISTIL, 'layer_norm_eps': 1e-5}, None, 'config.model.layer_norm_eps: found 1e-05'),
        ({'num_segments': 0}, None, 'config.pairs.mode: found a pair head'),
        ({'num_segments': 0}, SEQUENCE_CLASSIFICATION, "config.model.pooler: found 'tanh'"),
        ({'pooler': 'relu'}, None, "config.model.pooler: found 'relu'"),
    ],
)
def test_models_without_a_class_are_not_exported(small_config, changes, head, message):
    with pytest.raises(UserError, match=message):
        check_exportable(small_config(**changes), head)


def test_models_with_a_class_are_exported(small_config):
    check_exportable(small_config(num_segments=0), TOKEN_CLASSIFICATION)
    check_exportable(small_config(num_segments=0, pooler='relu'), SEQUENCE_CLASSIFICATION)


@pytest.mark.parametrize('changes', [{}, {'nsp': False}, {**ROBERTA, 'mlp': 'relu'}, {**ROBERTA, 'causal': True}])
def test_models_unlike_roberta_are_exported_as_bert(tokenizer, small_config, make_params, tmp_path, changes):
    config = small_config(**changes)
    export_huggingface(
        ExportContent(BertForPreTraining(config), make_params(config), _TwoSeparators(tokenizer)), tmp_path
    )
    facts = json.loads((tmp_path / 'config.json').read_text())
    assert facts['model_type'] == 'bert' and facts['architectures'][0].startswith('BertFor')
    assert facts['max_position_embeddings'] == config.max_positions
