"""Tests that masked and causal rows of one batch equal transformers' models with and without `is_decoder`.

Our predictions are shifted by one position.
"""

import jax
import numpy as np
import pytest

from bertjax.convert.load import load_pretraining_model
from bertjax.losses import pretraining_losses
from bertjax.model.bert import BertForPreTraining

CAUSAL = np.array([True, False, True, False])
LENGTHS = np.array([24, 17, 9, 20])


@pytest.fixture(scope='module')
def rows():
    """Returns four rows with three predictions each, none at position 0."""
    rng = np.random.default_rng(3)
    real = np.arange(24) < LENGTHS[:, None]
    positions = np.stack([np.sort(rng.choice(np.arange(1, n), 3, replace=False)) for n in LENGTHS]).astype(np.int32)
    ids = np.where(real, rng.integers(5, 203, real.shape), 0).astype(np.int32)
    return {
        'input_ids': ids,
        'segment_ids': np.zeros_like(ids),
        'attention_mask': real.astype(np.int32),
        'masked_positions': positions,
        'masked_ids': np.take_along_axis(ids, positions, 1),
        'masked_weights': np.ones(positions.shape, np.float32),
        'causal': (real & CAUSAL[:, None]).astype(np.int32),
    }


def test_logits_and_losses_are_equal(torch, make_peer, rows, tmp_path):
    import transformers

    peer = make_peer('BertForMaskedLM')
    peer.save_pretrained(tmp_path)
    decoder = transformers.BertLMHeadModel.from_pretrained(tmp_path, is_decoder=True, attn_implementation='eager')
    imported = load_pretraining_model(tmp_path, dropout=0.0, attention_dropout=0.0, nsp=False, shifted_predictions=True)
    model, names = BertForPreTraining(imported.config), ('input_ids', 'segment_ids', 'attention_mask')
    apply = jax.jit(
        lambda params, *inputs, causal: model.apply({'params': params}, *inputs, causal=causal)['mlm_logits']
    )
    inputs = [rows[name] for name in (*names, 'masked_positions')]
    logits = np.asarray(apply(imported.params, *inputs, causal=rows['causal']))[..., :203]
    ids, _, mask = (torch.tensor(rows[name], dtype=torch.long) for name in names)
    labels = np.full(ids.shape, -100)
    np.put_along_axis(labels, rows['masked_positions'], rows['masked_ids'], 1)
    with torch.no_grad():
        bidirectional = peer(ids, attention_mask=mask).logits.numpy()
        causal = decoder.eval()(ids, attention_mask=mask, labels=torch.tensor(labels))  # Shifts the labels.
        only_causal = decoder(ids[CAUSAL], attention_mask=mask[CAUSAL], labels=torch.tensor(labels[CAUSAL])).loss
    theirs = np.where(CAUSAL[:, None, None], causal.logits.numpy(), bidirectional)
    before = rows['masked_positions'] - 1
    np.testing.assert_allclose(logits, np.take_along_axis(theirs, before[..., None], 1), rtol=1e-4, atol=2e-5)
    losses = pretraining_losses(
        {'mlm_logits': logits[CAUSAL]}, {name: rows[name][CAUSAL] for name in ('masked_ids', 'masked_weights')}
    )
    total, weight = losses['mlm_loss']
    assert float(total / weight) == pytest.approx(float(only_causal), rel=1e-5)
