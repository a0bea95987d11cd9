"""Tests that transformers loads exports and computes the same results."""

import json
import os

import jax
import numpy as np
import pytest
import safetensors.numpy
from json_tokenizers import write_tokenizer
from marks import SCAN, slow

from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.config import check_exportable
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model
from bertjax.errors import UserError
from bertjax.losses import pretraining_losses
from bertjax.model.bert import BertForPreTraining
from bertjax.text.tokenizer import load_tokenizer

CARD = {'title': 'A test', 'steps': 10, 'Held-out': {'mlm_loss': 3.25, 'a | b': 'two\nlines'}}


def _export(config, params, tokenizer, folder, **content):
    export_huggingface(ExportContent(BertForPreTraining(config), params, tokenizer, **content), folder)


def _batch(config):
    rng = np.random.default_rng(1)
    B, S, P = 3, 12, 3
    mask = (np.arange(S) < np.array([12, 7, 4])[:, None]).astype(np.int32)
    return {
        'input_ids': rng.integers(5, config.vocab_size, (B, S)).astype(np.int32) * mask,
        'segment_ids': (np.arange(S) >= 5).astype(np.int32) * mask * (config.num_segments - 1),
        'attention_mask': mask,
        'masked_positions': np.array([[1, 4, 9], [2, 5, 0], [3, 0, 0]], np.int32),
        'masked_ids': rng.integers(5, config.vocab_size, (B, P)).astype(np.int32),
        'masked_weights': np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], np.float32),
        'nsp_labels': np.array([0, 1, 1], np.int32),
        'nsp_weights': np.ones(B, np.float32),
    }


@pytest.mark.parametrize('changes', [{}, {'scan_layers': False}, {'causal': True, 'nsp': False}], ids=str)
def test_the_file_has_the_bytes_that_safetensors_writes(tokenizer, small_config, make_params, tmp_path, changes):
    config = small_config(**changes)
    _export(config, make_params(config), tokenizer, tmp_path / 'hf', card=CARD)
    written, again = tmp_path / 'hf' / 'model.safetensors', tmp_path / 'again.safetensors'
    safetensors.numpy.save_file(safetensors.numpy.load_file(written), again, metadata={'format': 'pt'})
    assert written.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    'changes',
    [
        {},
        *slow(
            {'scan_layers': False, 'mlp': 'gelu_tanh'},
            {'nsp': False, 'num_segments': 1, 'mlp': 'relu'},
            {'nsp': False, 'causal': True},
            {'causal': True, 'mlp': 'gelu_tanh', 'scan_layers': False},
        ),
    ],
    ids=str,
)
def test_transformers_loads_everything_with_equal_losses(
    transformers, tokenizer, small_config, make_params, tmp_path, changes
):
    import torch

    config = small_config(**changes)
    params = make_params(config)
    _export(config, params, tokenizer, tmp_path / 'hf', card=CARD)
    described = json.loads((tmp_path / 'hf' / 'config.json').read_text())
    names = described['architectures']
    assert names == ['BertForPreTraining' if config.nsp else 'BertForMaskedLM']
    assert described['hidden_act'] == {'gelu_tanh': 'gelu_pytorch_tanh'}.get(config.mlp, config.mlp)
    assert described['is_decoder'] == config.causal and described['vocab_size'] == config.vocab_size
    if config.causal and not config.nsp:
        names = [*names, 'BertLMHeadModel']
    batch = _batch(config)
    inputs = [batch[name] for name in ('input_ids', 'segment_ids', 'attention_mask', 'masked_positions')]
    outputs = BertForPreTraining(config).apply({'params': params}, *inputs)
    losses = pretraining_losses(outputs, batch)
    rows, columns = np.nonzero(batch['masked_weights'])
    positions = batch['masked_positions'][rows, columns]
    for name in names:
        peer, info = getattr(transformers, name).from_pretrained(tmp_path / 'hf', output_loading_info=True)
        assert not any(info.values()), info
        theirs_names = {'input_ids': 'input_ids', 'segment_ids': 'token_type_ids', 'attention_mask': 'attention_mask'}
        with torch.no_grad():
            theirs = peer.eval()(**{b: torch.tensor(batch[a], dtype=torch.long) for a, b in theirs_names.items()})
        logits = theirs.prediction_logits if config.nsp else theirs.logits
        assert logits.shape[-1] == config.vocab_size
        ours = np.asarray(outputs['mlm_logits'])[rows, columns, : config.vocab_size]
        np.testing.assert_allclose(ours, logits.numpy()[rows, positions], rtol=1e-5, atol=1e-5)
        labels = torch.tensor(batch['masked_ids'][rows, columns], dtype=torch.long)
        mlm = torch.nn.functional.cross_entropy(logits[rows, positions], labels).item()
        assert float(losses['mlm_loss'][0] / losses['mlm_loss'][1]) == pytest.approx(mlm, abs=1e-5)
        if config.nsp:
            labels = torch.tensor(batch['nsp_labels'], dtype=torch.long)
            pair = torch.nn.functional.cross_entropy(theirs.seq_relationship_logits, labels).item()
            assert float(losses['nsp_loss'][0] / losses['nsp_loss'][1]) == pytest.approx(pair, abs=1e-5)


def test_the_tokenizer_and_the_card_are_exported(transformers, tokenizer, small_config, make_params, tmp_path):
    config = small_config()
    _export(config, make_params(config), tokenizer, tmp_path, card=CARD)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(peer) == config.vocab_size
    text = 'word3 abc zz'
    assert peer(text, add_special_tokens=False)['input_ids'] == list(tokenizer.encode([text])[0])
    card = (tmp_path / 'README.md').read_text()
    assert card.startswith('---\nlibrary_name: transformers\n')
    for line in ('# A test', '## Training', '| steps | 10 |', '## Held-out', '| mlm_loss | 3.25 |'):
        assert line in card.splitlines()
    assert '| a \\| b | two lines |' in card


@SCAN
def test_back_to_the_same_bits(tokenizer, small_config, make_params, tmp_path, scan):
    config = small_config(scan_layers=scan, mlp='gelu_tanh', layer_norm_eps=1e-7, init_stddev=0.03)
    params = make_params(config)
    _export(config, jax.tree.map(jax.numpy.asarray, params), tokenizer, tmp_path)
    imported = load_pretraining_model(tmp_path, scan_layers=scan)
    assert imported.config == config and imported.missing == imported.unused == []

    def zero_padding(path, x):  # The padding rows of the vocabulary are not exported, and are read as zeros.
        padded = path[-2].key == 'token' or path[-2].key == 'mlm'
        return np.where((np.arange(len(x)) < config.vocab_size).reshape(-1, *[1] * (x.ndim - 1)), x, 0) if padded else x

    jax.tree.map(np.testing.assert_array_equal, imported.params, jax.tree_util.tree_map_with_path(zero_padding, params))


def test_equal_parameters_give_equal_bytes(tokenizer, small_config, make_params, tmp_path):
    config = small_config()
    for name, scan in (('one', True), ('two', True), ('unrolled', False)):
        config = small_config(scan_layers=scan)
        params = make_params(small_config())
        if not scan:
            from bertjax.model.stacking import unstack_layers

            params = unstack_layers(params)
        _export(config, params, tokenizer, tmp_path / name, card=CARD)
    files = sorted(os.listdir(tmp_path / 'one'))
    assert {'README.md', 'config.json', 'model.safetensors', 'vocab.txt', 'tokenizer.json'} <= set(files)
    for other in ('two', 'unrolled'):
        assert sorted(os.listdir(tmp_path / other)) == files
        for file in files:
            assert (tmp_path / 'one' / file).read_bytes() == (tmp_path / other / file).read_bytes(), file
    with safetensors.safe_open(tmp_path / 'one' / 'model.safetensors', 'np') as file:
        assert file.metadata() == {'format': 'pt'}
    modes = {path.name: path.stat().st_mode for path in (tmp_path / 'one').iterdir()}
    assert modes['model.safetensors'] == modes['config.json']


class _FailingTokenizer:
    def __init__(self, tokenizer):
        self.vocab_size, self.pad_id, self.separators = tokenizer.vocab_size, tokenizer.pad_id, 1

    def save(self, directory):
        raise OSError('disk full')


def test_only_a_complete_export_replaces_an_export(tokenizer, small_config, make_params, tmp_path):
    config, target = small_config(), tmp_path / 'hf'
    _export(config, make_params(config, 1), tokenizer, target)
    before = (target / 'model.safetensors').read_bytes()
    with pytest.raises(OSError, match='disk full'):
        _export(config, make_params(config, 2), _FailingTokenizer(tokenizer), target)
    assert os.listdir(tmp_path) == ['hf'] and (target / 'model.safetensors').read_bytes() == before
    _export(config, make_params(config, 2), tokenizer, target)
    assert os.listdir(tmp_path) == ['hf'] and (target / 'model.safetensors').read_bytes() != before


def test_an_export_is_recovered_after_a_kill_between_renames(tokenizer, small_config, make_params, tmp_path):
    config, target = small_config(), tmp_path / 'hf'
    _export(config, make_params(config, 1), tokenizer, target)
    before = (target / 'model.safetensors').read_bytes()
    target.rename(tmp_path / '.hf.old')
    (tmp_path / '.hf.new').mkdir()
    with pytest.raises(OSError, match='disk full'):
        _export(config, make_params(config, 2), _FailingTokenizer(tokenizer), target)
    assert os.listdir(tmp_path) == ['hf'] and (target / 'model.safetensors').read_bytes() == before


def test_models_that_cannot_be_exported_are_refused(tokenizer, small_config, make_params, tmp_path):
    with pytest.raises(UserError, match=r'config.model.pre_norm: .*config.export_formats=orbax'):
        check_exportable(small_config(pre_norm=True))
    check_exportable(small_config(causal=True))
    config = small_config()
    params = make_params(config)
    with pytest.raises(UserError, match='tokenizer'):
        _export(small_config(vocab_size=100), params, tokenizer, tmp_path / 'hf')
    (tmp_path / 'notes.txt').write_text('mine')
    with pytest.raises(UserError, match='a directory with other files'):
        _export(config, params, tokenizer, tmp_path)
    with pytest.raises(ValueError, match='do not fit the config'):
        _export(small_config(mlp_dim=32), params, tokenizer, tmp_path / 'hf')
    with pytest.raises(ValueError, match='do not fit the config'):
        _export(config, {**params, 'extra': {'kernel': np.zeros(3)}}, tokenizer, tmp_path / 'hf')
    assert os.listdir(tmp_path) == ['notes.txt']


def test_a_bert_with_the_tokenizer_of_a_roberta_gets_its_segments(small_config, make_params, tmp_path, transformers):
    lines = ['the old river runs by the mill', 'a bird sings in the wind'] * 40
    write_tokenizer('modern', lines, tmp_path, 300)
    settings = json.loads((tmp_path / 'tokenizer.json').read_text())
    ids = {token['content']: token['id'] for token in settings['added_tokens']}
    settings['post_processor'] = {
        'type': 'RobertaProcessing', 'trim_offsets': True, 'add_prefix_space': False,
        'sep': ['[SEP]', ids['[SEP]']], 'cls': ['[CLS]', ids['[CLS]']],
    }  # fmt: skip
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    module = BertForPreTraining(small_config(vocab_size=tokenizer.vocab_size))
    export_huggingface(ExportContent(module, make_params(module), tokenizer), tmp_path / 'model')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')('the river', 'a bird')
    a, b = tokenizer.encode(['the river', 'a bird'])
    sep = [tokenizer.sep_id]
    assert theirs['input_ids'] == [tokenizer.cls_id, *a, *sep * 2, *b, *sep]
    assert theirs['token_type_ids'] == [0] * (len(a) + 3) + [1] * (len(b) + 1)
    assert load_pretraining_model(tmp_path / 'model').config.num_segments == 2
