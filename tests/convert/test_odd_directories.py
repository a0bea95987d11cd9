"""Tests that odd values in config.json or an index give a model or a `UserError`."""

import json
import random

import pytest

from bertjax.convert.load import load_pretraining_model, read_config
from bertjax.errors import UserError
from bertjax.model.config import BertConfig

CONFIG = {
    'model_type': 'bert', 'vocab_size': 64, 'hidden_size': 8, 'num_hidden_layers': 2, 'num_attention_heads': 2,
    'intermediate_size': 16, 'max_position_embeddings': 16, 'type_vocab_size': 2, 'hidden_dropout_prob': 0.1,
    'attention_probs_dropout_prob': 0.1, 'layer_norm_eps': 1e-12, 'initializer_range': 0.02, 'hidden_act': 'gelu',
    'architectures': ['BertForMaskedLM'], 'is_decoder': False, 'id2label': {'0': 'a'}, 'add_cross_attention': False,
    'position_embedding_type': 'absolute',
}  # fmt: skip
ODD = [None, True, 0, -1, 3, 2**40, 1.5, float('nan'), float('inf'), '', 'x', '\ud800', [], [1], [[]], {}, {'a': 1}]
RAW = [b'', b'{', b'[]', b'null', b'\xff\xfe{', b'[' * 100_000]


@pytest.mark.parametrize('key', CONFIG)
def test_a_config_with_an_odd_value_is_read_or_refused_with_the_key(key, tmp_path):
    absent = {name: value for name, value in CONFIG.items() if name != key}
    for values in (absent, *({**CONFIG, key: value} for value in ODD)):
        (tmp_path / 'config.json').write_text(json.dumps(values))
        try:
            config = read_config(tmp_path)
        except UserError as error:
            reported = 'num_attention_heads' if key == 'hidden_size' and 'divisor' in str(error) else key
            assert f'config.json: found {reported} ' in str(error)
        else:
            assert isinstance(config, BertConfig) and isinstance(config.causal, bool)


@pytest.mark.parametrize('content', RAW, ids=range(len(RAW)))
@pytest.mark.parametrize('name', ['config.json', 'model.safetensors.index.json'])
def test_invalid_json_is_refused(name, content, tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf'{name}: found (an empty file|no JSON|a JSON)'):
        load_pretraining_model(tmp_path)


def test_an_odd_index_is_refused(tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
    (tmp_path / 'folder').mkdir()
    names = [*ODD, '../config.json', '/etc/passwd', '.', '..', 'folder', 'a\0b', 'n' * 5000, 'absent', 'config.json']
    tables = [{}, *({'weight_map': value} for value in ODD), *({'weight_map': {'a': name}} for name in names)]
    for table in [*tables, {'weight_map': {'a': 'config.json', 'b': 1}}]:
        (tmp_path / 'model.safetensors.index.json').write_text(json.dumps(table))
        with pytest.raises(UserError, match=str(tmp_path)):
            load_pretraining_model(tmp_path)


def test_a_damaged_header_of_a_safetensors_file_is_refused(tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
    header = json.dumps({'bert.pooler.dense.weight': {'dtype': 'F32', 'shape': [8, 8], 'data_offsets': [0, 256]}})
    whole = len(header).to_bytes(8, 'little') + header.encode() + bytes(256)
    rng = random.Random(0)
    for _ in range(60):
        data = bytearray(whole)
        data[rng.randrange(len(header) + 8)] ^= 1 << rng.randrange(8)
        (tmp_path / 'model.safetensors').write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        with pytest.raises(UserError, match=str(tmp_path)):  # If the header is valid, the encoder is missing.
            load_pretraining_model(tmp_path)
    (tmp_path / 'model.safetensors').unlink()
    (tmp_path / 'model.safetensors').mkdir()
    with pytest.raises(UserError, match='found a folder'):
        load_pretraining_model(tmp_path)
