"""Tests that Hugging Face directories of other programs are loaded, or refused with the reason."""

import json
import re

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining

MODEL = 'model.safetensors'


@pytest.fixture
def exported(tokenizer, small_config, make_params, tmp_path):
    """Returns a directory that bertjax exported, which the tests change, and the exported parameters."""
    params = make_params(small_config())
    export_huggingface(ExportContent(BertForPreTraining(small_config()), params, tokenizer), tmp_path)
    return tmp_path, params


def _rewrite(directory, change):
    tensors = change(safetensors.numpy.load_file(directory / MODEL))
    safetensors.numpy.save_file(tensors, directory / MODEL)


def _save(path, tensors):
    """Writes a safetensors file without the library, whose NumPy interface lacks bfloat16."""
    header, data = {}, b''
    kinds = {'float16': 'F16', 'bfloat16': 'BF16', 'float64': 'F64'}
    for name, x in tensors.items():
        offsets = [len(data), len(data) + x.nbytes]
        header[name] = {'dtype': kinds[x.dtype.name], 'shape': list(x.shape), 'data_offsets': offsets}
        data += x.tobytes()
    described = json.dumps(header).encode()
    path.write_bytes(len(described).to_bytes(8, 'little') + described + data)


def _set(directory, **values):
    path = directory / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _assert_encoders_equal(imported, params):
    rows = 143  # The other rows are padding.
    actual, expected = (dict(p['encoder']) for p in (imported.params, params))
    for encoder in (actual, expected):
        embeddings = encoder['embeddings']
        encoder['embeddings'] = {**embeddings, 'token': embeddings['token']['embedding'][:rows]}
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(exported, value):
    directory, _ = exported
    name = 'bert.encoder.layer.1.intermediate.dense.weight'

    def damage(tensors):
        damaged = tensors[name].copy()
        damaged[3, 2] = value
        return {**tensors, name: damaged}

    _rewrite(directory, damage)
    with pytest.raises(UserError, match=rf'{re.escape(name)}: found 1 values that are nan or inf'):
        load_pretraining_model(directory)


def test_an_old_encoder_without_prefix_and_heads_is_loaded(exported):
    directory, params = exported

    def old(tensors):
        names = {name: name.removeprefix('bert.') for name in tensors if name.startswith('bert.')}
        names = {a: b.replace('LayerNorm.weight', 'LayerNorm.gamma') for a, b in names.items()}
        names = {a: b.replace('LayerNorm.bias', 'LayerNorm.beta') for a, b in names.items()}
        return {**{b: tensors[a] for a, b in names.items()}, 'embeddings.position_ids': np.arange(32)[None]}

    _rewrite(directory, old)
    imported = load_pretraining_model(directory)
    _assert_encoders_equal(imported, params)
    np.testing.assert_array_equal(imported.params['pooler']['kernel'], params['pooler']['kernel'])
    heads = ['mlm/bias', 'mlm/dense/bias', 'mlm/dense/kernel', 'mlm/norm/bias', 'mlm/norm/scale']
    assert imported.missing == [*heads, 'nsp/bias', 'nsp/kernel']
    assert imported.unused == []
    drawn = [load_pretraining_model(directory, seed=seed).params['nsp']['kernel'] for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    assert 0 < np.abs(drawn[0]).max() <= 2 * 0.02


def test_unused_tensors_are_reported(exported):
    directory, params = exported
    _rewrite(directory, lambda tensors: {**tensors, 'classifier.weight': np.ones((3, 16), np.float32)})
    assert load_pretraining_model(directory).unused == ['classifier.weight']
    without = load_pretraining_model(directory, nsp=False)
    pair = ['bert.pooler.dense.bias', 'bert.pooler.dense.weight']
    assert without.unused == [*pair, 'classifier.weight', 'cls.seq_relationship.bias', 'cls.seq_relationship.weight']
    assert set(without.params) == {'encoder', 'mlm'} and without.missing == []
    _assert_encoders_equal(without, params)


def test_a_masked_lm_gets_a_new_pair_head_on_request(exported):
    directory, _ = exported
    keep = lambda name: 'pooler' not in name and 'seq_relationship' not in name  # noqa: E731
    _rewrite(directory, lambda tensors: {name: x for name, x in tensors.items() if keep(name)})
    assert not load_pretraining_model(directory).config.nsp
    imported = load_pretraining_model(directory, nsp=True, dropout=0.3)
    assert imported.config.dropout == 0.3
    assert imported.missing == ['nsp/bias', 'nsp/kernel', 'pooler/bias', 'pooler/kernel']


@pytest.mark.parametrize('dtype', [np.float16, ml_dtypes.bfloat16, np.float64])
def test_shards_of_other_dtypes_are_loaded_as_float32(exported, dtype):
    directory, params = exported
    tensors = {name: x.astype(dtype) for name, x in safetensors.numpy.load_file(directory / MODEL).items()}
    (directory / MODEL).unlink()
    names, table = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f'model-{i + 1:05}-of-00002.safetensors'
        table |= dict.fromkeys(part, file)
        _save(directory / file, {name: tensors[name] for name in part})
    (directory / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': table}))
    imported = load_pretraining_model(directory)
    assert imported.missing == [] and {x.dtype for x in jax.tree.leaves(imported.params)} == {np.dtype('float32')}
    rounded = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), params)
    _assert_encoders_equal(imported, rounded)
    (directory / file).unlink()
    with pytest.raises(UserError, match=f'{file}: found nothing'):
        load_pretraining_model(directory)


def test_a_tied_decoder_must_equal_the_embeddings(exported):
    directory, params = exported
    embedding, decoder = 'bert.embeddings.word_embeddings.weight', 'cls.predictions.decoder'
    _rewrite(directory, lambda tensors: {**tensors, f'{decoder}.weight': tensors[embedding].copy()})
    _assert_encoders_equal(load_pretraining_model(directory), params)
    _rewrite(directory, lambda tensors: {**tensors, f'{decoder}.bias': tensors['cls.predictions.bias'].copy()})
    _assert_encoders_equal(load_pretraining_model(directory), params)
    _rewrite(directory, lambda tensors: {**tensors, f'{decoder}.weight': tensors[embedding] + 1})
    with pytest.raises(UserError, match='in which the two are tied'):
        load_pretraining_model(directory)


@pytest.mark.parametrize(
    'values, message',
    [
        ({'model_type': 'gpt2'}, "config.json: found model_type 'gpt2', expected one of bert, roberta"),
        ({'model_type': 'roberta'}, 'no encoder/embeddings/norm/bias'),
        ({'hidden_act': 'silu'}, "found hidden_act 'silu'"),
        ({'position_embedding_type': 'relative_key'}, "found position_embedding_type 'relative_key'"),
        ({'add_cross_attention': True}, 'found add_cross_attention True'),
        ({'hidden_size': 32}, r'word_embeddings.weight: found shape \(143, 16\), expected \(143, 32\)'),
        ({'vocab_size': 99}, r'word_embeddings.weight: found shape \(143, 16\), expected \(99, 16\)'),
        ({'num_hidden_layers': 3}, 'expected all tensors of an encoder of 3 layers'),
        ({'num_hidden_layers': 'two'}, "config.json: found num_hidden_layers 'two'"),
        ({'num_attention_heads': 3}, 'config.json: found num_attention_heads 3, expected a divisor of width 16'),
    ],
)
def test_a_config_that_does_not_fit_is_refused(exported, values, message):
    _set(exported[0], **values)
    with pytest.raises(UserError, match=message):
        load_pretraining_model(exported[0])


def test_tensors_of_unused_layers_are_reported(exported):
    _set(exported[0], num_hidden_layers=1)
    unused = load_pretraining_model(exported[0]).unused
    assert len(unused) == 16 and all(name.startswith('bert.encoder.layer.1.') for name in unused)


def test_damaged_and_foreign_directories_are_refused(exported, tmp_path_factory):
    directory, _ = exported
    empty = tmp_path_factory.mktemp('empty')
    with pytest.raises(UserError, match=r'no config.json.*save_pretrained'):
        load_pretraining_model(empty)
    (empty / 'config.json').write_bytes((directory / 'config.json').read_bytes())
    (empty / 'tf_model.h5').write_bytes(b'HDF')
    with pytest.raises(UserError, match=r'found config.json, tf_model.h5, expected model.safetensors or pytorch_mod'):
        load_pretraining_model(empty)
    whole = (directory / MODEL).read_bytes()
    (directory / MODEL).write_bytes(whole[:-100])
    with pytest.raises(UserError, match='invalid safetensors'):
        load_pretraining_model(directory)
    (directory / MODEL).write_bytes(whole)
    _rewrite(directory, lambda tensors: {**tensors, 'bert.pooler.dense.bias': np.ones(16, np.int8)})
    with pytest.raises(UserError, match='type I8'):
        load_pretraining_model(directory)
    (directory / 'config.json').write_text('{')
    with pytest.raises(UserError, match='no JSON'):
        load_pretraining_model(directory)


@pytest.mark.parametrize('change', ['inputs', 'class', 'template', 'none'])
def test_a_bert_whose_tokenizer_gives_no_segments_has_one_segment(exported, tokenizer, tmp_path, transformers, change):
    directory, params = exported
    path, template = directory / 'tokenizer_config.json', directory / 'tokenizer.json'
    config = json.loads(path.read_text())
    assert config['model_max_length'] == 32 and 'token_type_ids' in config['model_input_names']
    if change == 'inputs':
        config['model_input_names'] = ['input_ids', 'attention_mask']
    elif change == 'class':
        del config['model_input_names']
        config['tokenizer_class'] = 'XLMRobertaTokenizerFast'
    elif change == 'template':
        config['tokenizer_class'] = 'PreTrainedTokenizerFast'
        settings = json.loads(template.read_text())
        for part in settings['post_processor']['pair']:
            next(iter(part.values()))['type_id'] = 0
        template.write_text(json.dumps(settings))
    path.write_text(json.dumps(config))
    imported = load_pretraining_model(directory)
    assert imported.config.num_segments == (2 if change == 'none' else 1)
    if change != 'class':  # which transformers reads by its own rules
        ids = transformers.AutoTokenizer.from_pretrained(directory)('the river', 'the old wind')
        assert any(ids.get('token_type_ids', ())) is (change == 'none')
    table = params['encoder']['embeddings']['segment']['embedding'][: imported.config.num_segments]
    np.testing.assert_array_equal(imported.params['encoder']['embeddings']['segment']['embedding'], table)
    module, again = BertForPreTraining(imported.config), tmp_path / 'again'
    export_huggingface(ExportContent(module, imported.params, tokenizer), again)
    inputs = json.loads((again / 'tokenizer_config.json').read_text())['model_input_names']
    assert ('token_type_ids' in inputs) is (change == 'none')
