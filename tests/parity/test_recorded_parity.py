"""Tests parity without PyTorch: against its recorded results for a BERT with deterministic weights (`recorded.py`)."""

import json

import jax
import numpy as np
import pytest
from recorded import DIMS, FILE, batch, by_pytorch, summarize, write_model

from bertjax.convert.load import load_pretraining_model
from bertjax.convert.names import to_huggingface
from bertjax.losses import pretraining_losses
from bertjax.model.bert import BertForPreTraining
from bertjax.model.dropout import Dropout


def _close(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert (np.abs(ours - theirs) <= 1e-5 + 1e-5 * np.abs(theirs)).all(), (
        f'the largest difference is {np.abs(ours - theirs).max():.2e}'
    )


def _close_gradients(ours: dict, theirs: dict):
    assert ours.keys() == theirs.keys()
    whole = np.sqrt(sum(norm**2 for norm, _ in theirs.values()))
    for name, numbers in theirs.items():
        np.testing.assert_allclose(ours[name], numbers, rtol=1e-4, atol=1e-6 * whole, err_msg=name)


@pytest.mark.slow
def test_results_equal_the_record_of_pytorch(tmp_path):
    write_model(tmp_path)
    expected, rows = json.loads(FILE.read_text()), batch()
    imported = load_pretraining_model(tmp_path, dropout=0.0, attention_dropout=0.0)
    assert imported.missing == [] and imported.unused == []
    model, params = BertForPreTraining(imported.config), imported.params
    inputs = [rows[name] for name in ('input_ids', 'segment_ids', 'attention_mask')]
    real = rows['attention_mask'] > 0
    _, layers, _ = jax.jit(lambda p: model.apply({'params': p}, *inputs, method='encode'))(params)
    for ours, theirs in zip(layers, expected['hidden'], strict=True):
        _close(np.asarray(ours)[real], theirs)

    def loss(params):
        dropout = Dropout.from_key(jax.random.key(0), len(inputs[0]))  # Its rate is 0.
        outputs = model.apply({'params': params}, *inputs, rows['masked_positions'], dropout=dropout)
        losses = pretraining_losses(outputs, rows)
        return sum(losses[name][0] / losses[name][1] for name in ('mlm_loss', 'nsp_loss')), outputs

    (value, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert float(value) == pytest.approx(expected['loss'], rel=1e-5)
    logits = np.asarray(outputs['mlm_logits'])[np.nonzero(rows['masked_weights'])]
    _close(logits[:, : DIMS['vocab_size']], expected['mlm_logits'])
    _close(outputs['nsp_logits'], expected['nsp_logits'])
    gradients = to_huggingface(gradients, model.config)
    _close_gradients({name: summarize(name, x) for name, x in gradients.items()}, expected['gradients'])


@pytest.mark.slow
def test_pytorch_still_gives_the_record(torch, tmp_path):
    write_model(tmp_path)
    expected, actual = json.loads(FILE.read_text()), by_pytorch(tmp_path)
    for name in ('hidden', 'mlm_logits', 'nsp_logits', 'loss'):
        _close(actual[name], expected[name])
    _close_gradients(actual['gradients'], expected['gradients'])
