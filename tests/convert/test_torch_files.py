"""Tests reading pytorch_model.bin, and that files with anything but tensors are refused."""

import json
import pickle
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining

BIN = 'pytorch_model.bin'


@pytest.fixture
def saved(tokenizer, small_config, make_params, tmp_path):
    """Returns a directory without weights, the tensors to save there, and a function that loads and compares them."""
    params = make_params(small_config())
    export_huggingface(ExportContent(BertForPreTraining(small_config()), params, tokenizer), tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
    (tmp_path / 'model.safetensors').unlink()
    return tmp_path, tensors, make_check(params)


def make_check(params):
    """Returns check(directory, dtype), which compares the loaded encoder with `params` rounded to `dtype`."""

    def check(directory, dtype):
        imported = load_pretraining_model(directory)
        rounded = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), params)
        ours, theirs = imported.params['encoder']['layers'], rounded['encoder']['layers']
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        assert imported.missing == imported.unused == []

    return check


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_one_file_and_shards_are_loaded(saved, dtype):
    torch = pytest.importorskip('torch', reason="needs the extra 'test'")
    directory, tensors, check = saved
    state = {name: torch.tensor(x).to(getattr(torch, dtype)) for name, x in tensors.items()}
    state['bert.embeddings.position_ids'] = torch.arange(32)[None]
    torch.save(state, directory / BIN)
    check(directory, jax.numpy.dtype(dtype))
    (directory / BIN).unlink()
    table = {}
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2])):
        file = f'pytorch_model-{number + 1:05}-of-00002.bin'
        trained = {n: torch.nn.Parameter(state[n], requires_grad=state[n].is_floating_point()) for n in names}
        torch.save(trained, directory / file)  # Like a model's named_parameters.
        table |= dict.fromkeys(names, file)
    (directory / f'{BIN}.index.json').write_text(json.dumps({'weight_map': table}))
    check(directory, jax.numpy.dtype(dtype))


class Harmful:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return print, ('run',)


@pytest.mark.parametrize(
    'content, message',
    [
        (b'PK\x03\x04 damaged', 'found a file that PyTorch does not load with weights_only=True'),
        (pickle.dumps({'a': Harmful()}), 'found a file that PyTorch does not load with weights_only=True'),
        ({'epoch': 3}, "found 'epoch', expected a state dict"),
        ([1], 'found list, expected a state dict'),
        ({'pooler.dense.bias': 'int8'}, 'bin: pooler.dense.bias: found type int8'),
        ({'pooler.dense.bias': 'sparse'}, "found 'pooler.dense.bias', expected a state dict"),
    ],
    ids=['damaged', 'pickle', 'numbers', 'list', 'quantized', 'sparse'],
)
def test_an_invalid_state_dict_is_refused(saved, content, message, capfd):
    torch = pytest.importorskip('torch', reason="needs the extra 'test'")
    directory = saved[0]
    if isinstance(content, bytes):
        (directory / BIN).write_bytes(content)
    else:
        named = isinstance(content, dict) and 'pooler.dense.bias' in content
        x = torch.ones(16, dtype=torch.int8)
        x = x.to_sparse() if named and 'sparse' in content.values() else x
        torch.save(dict.fromkeys(content, x) if named else content, directory / BIN)
    with pytest.raises(UserError, match=message):
        load_pretraining_model(directory)
    assert 'run' not in capfd.readouterr().out


def test_a_flipped_bit_is_detected_if_the_file_has_checksums(saved):
    torch = pytest.importorskip('torch', reason="needs the extra 'test'")
    directory, tensors, _ = saved

    def load_flipped():
        torch.save({name: torch.tensor(x) for name, x in tensors.items()}, directory / BIN)
        content = bytearray((directory / BIN).read_bytes())
        content[content.index(tensors['bert.embeddings.word_embeddings.weight'][3].tobytes())] ^= 1
        (directory / BIN).write_bytes(content)
        return load_pretraining_model(directory)

    with pytest.raises(UserError, match=rf'{BIN}: .*/data/\d+: found bytes that do not match their CRC-32, .*copy'):
        load_flipped()
    torch.serialization.set_crc32_options(False)
    try:
        assert load_flipped().missing == []  # There is no checksum to compare with.
    finally:
        torch.serialization.set_crc32_options(True)


def test_a_missing_torch_is_an_error_with_a_fix(saved, monkeypatch):
    directory = saved[0]
    (directory / BIN).write_bytes(b'')
    monkeypatch.setitem(sys.modules, 'torch', None)
    with pytest.raises(UserError, match=f'{BIN}: found a file that only PyTorch can read safely.*pip install'):
        load_pretraining_model(directory)
