"""The task heads with transformers' weights, and the BiLSTM with torch's, give their numbers."""

import jax
import numpy as np
import pytest

from bertjax.convert.huggingface import load_huggingface
from bertjax.model.bilstm import BiLstm
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTokens

CASES = {
    'classification': ('BertForSequenceClassification', BertForClassification, 'classifier', {'outputs': 3}),
    'regression': ('BertForSequenceClassification', BertForClassification, 'classifier', {'outputs': 1}),
    'tokens': ('BertForTokenClassification', BertForTokens, 'classifier', {'outputs': 3}),
    'spans': ('BertForQuestionAnswering', BertForSpans, 'qa_outputs', {}),
    'multiple_choice': ('BertForMultipleChoice', BertForMultipleChoice, 'classifier', {}),
}


@pytest.mark.parametrize('case', CASES)
def test_head_equals_transformers(torch, make_peer, batch, tmp_path, case):
    kind, head, name, options = CASES[case]
    labels = {'num_labels': options['outputs']} if options else {}
    peer = make_peer(kind, **labels)
    peer.save_pretrained(tmp_path)
    imported = load_huggingface(tmp_path)
    assert imported.unused == [f'{name}.bias', f'{name}.weight']  # said, not dropped in silence
    weights = peer.state_dict()
    params = {'encoder': imported.params['encoder']}
    params['head'] = {'kernel': weights[f'{name}.weight'].numpy().T, 'bias': weights[f'{name}.bias'].numpy()}
    if 'bert.pooler.dense.weight' in weights:
        params['pooler'] = imported.params['pooler']
    inputs = {key: batch[key][:4] for key in ('input_ids', 'segment_ids', 'attention_mask')}
    if case == 'multiple_choice':
        inputs = {key: x.reshape(2, 2, -1) for key, x in inputs.items()}
    model = head(imported.config, **options)
    ours = model.apply({'params': params}, **inputs, deterministic=True)
    theirs_names = {'input_ids': 'input_ids', 'segment_ids': 'token_type_ids', 'attention_mask': 'attention_mask'}
    tensors = {theirs_names[key]: torch.tensor(x, dtype=torch.long) for key, x in inputs.items()}
    with torch.no_grad():
        theirs = peer(**tensors)
    pairs = [(ours, theirs['logits'])] if case != 'spans' else zip(ours, theirs[:2], strict=True)
    real = inputs['attention_mask'] > 0
    for mine, other in pairs:
        mine, other = np.asarray(mine), other.numpy()
        assert mine.shape == other.shape and mine.dtype == np.float32
        if case in ('tokens', 'spans'):
            mine, other = mine[real], other[real]
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_bilstm_equals_torch_on_packed_sequences(torch):
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
