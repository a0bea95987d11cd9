"""Tests ModernBERT against transformers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import SCAN, slow

from bertjax.convert.load import load_pretraining_model, read_config
from bertjax.convert.names import to_huggingface
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import parameter_count
from bertjax.model.stacking import unstack_layers

V = 203


@pytest.fixture(scope='module')
def peer(torch, tmp_path_factory):
    """Returns (a small ModernBertForMaskedLM with a window of 16, its directory)."""
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=40,
        local_attention=16, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, attn_implementation='eager',
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ModernBertForMaskedLM(config).float().eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            noise = torch.randn_like(x)
            x.copy_(1 + 0.3 * noise if 'norm' in name else 0.15 * noise)
    directory = tmp_path_factory.mktemp('modernbert')
    model.save_pretrained(directory)
    return model, directory


def _batch(lengths, length):
    rng = np.random.default_rng(3)
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    return np.where(mask, rng.integers(3, V, mask.shape), 0).astype(np.int32), np.zeros_like(mask), mask


# Attention computes rows of 48 at once, and rows of 160 in blocks of queries.
@pytest.mark.parametrize('length', [160, *slow(48)])
@SCAN
def test_logits_and_gradients_equal(torch, peer, length, scan):
    theirs, directory = peer
    imported = load_pretraining_model(directory, scan_layers=scan)
    model = BertForPreTraining(imported.config)
    inputs = _batch([length, length - 30, 7], length)
    labels = np.random.default_rng(4).integers(0, V, inputs[0].shape)
    labels[inputs[2] == 0] = -100
    theirs.zero_grad()
    expected = theirs(
        input_ids=torch.tensor(inputs[0]).long(), attention_mask=torch.tensor(inputs[2]), labels=torch.tensor(labels)
    )
    expected.loss.backward()
    positions = np.tile(np.arange(length, dtype=np.int32), (3, 1))

    def loss(params):
        logits = model.apply({'params': params}, *inputs, positions)['mlm_logits']
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), np.maximum(labels, 0)[..., None], -1)[..., 0]
        return -(chosen * inputs[2]).sum() / inputs[2].sum(), logits

    (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(imported.params)
    real = inputs[2] > 0
    np.testing.assert_allclose(
        np.asarray(logits)[real][:, :V], expected.logits.detach().numpy()[real], rtol=1e-5, atol=1e-5
    )
    assert float(value) == pytest.approx(expected.loss.item(), rel=1e-5)
    ours = to_huggingface(gradients, imported.config)
    for i in range(5):
        block = f'bert.encoder.layer.{i}'
        their_block = theirs.model.layers[i]
        parts = [ours[f'{block}.attention.self.{name}.weight'] for name in ('query', 'key', 'value')]
        _close_norm(np.concatenate(parts), their_block.attn.Wqkv.weight.grad)
        parts = [ours[f'{block}.intermediate.{name}.weight'] for name in ('gate', 'dense')]
        _close_norm(np.concatenate(parts), their_block.mlp.Wi.weight.grad)
        _close_norm(ours[f'{block}.output.LayerNorm.weight'], their_block.mlp_norm.weight.grad)
        if i:
            _close_norm(ours[f'{block}.attention.output.LayerNorm.weight'], their_block.attn_norm.weight.grad)
    _close_norm(ours['bert.embeddings.word_embeddings.weight'], theirs.decoder.weight.grad)
    _close_norm(ours['bert.final_norm.weight'], theirs.model.final_norm.weight.grad)
    # The unused norm of the first block has no gradient.
    unrolled = unstack_layers(gradients) if scan else gradients
    assert not np.any(unrolled['encoder']['layers_0']['attention_norm']['scale'])


def _close_norm(ours, theirs):
    theirs = theirs.numpy()
    assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs)


@pytest.mark.parametrize('scan', [True, *slow(False)])
def test_packed_rows_equal_single_rows(peer, scan):
    """Rotations and windows of a sequence do not depend on its place in a row."""
    imported = load_pretraining_model(peer[1], scan_layers=scan)
    model = BertForPreTraining(imported.config)
    inputs = _batch([90, 60, 40, 100], 192)

    def encode(packing):
        packed_model = model.clone(packing=packing)
        apply = jax.jit(lambda params, *rows: packed_model.apply({'params': params}, *rows, method='encode')[0])
        return np.asarray(apply(imported.params, *inputs))

    real = inputs[2] > 0
    np.testing.assert_allclose(encode(2)[real], encode(None)[real], rtol=1e-5, atol=1e-5)


def test_stacked_and_unrolled_parameters_are_equal(peer):
    stacked, unrolled = (load_pretraining_model(peer[1], scan_layers=scan) for scan in (True, False))
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked.params), unrolled.params)
    assert dataclasses.replace(stacked.config, scan_layers=False) == unrolled.config


# (layers, width, MLP, heads, vocabulary): ModernBERT base and large; Ettin 17M, 150M and 1B; mmBERT base.
SIZES = [
    (22, 768, 1152, 12, 50368), (28, 1024, 2624, 16, 50368), (7, 256, 384, 4, 50368), (28, 1792, 3840, 28, 50368),
    (22, 768, 1152, 12, 256000),
]  # fmt: skip


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_published_sizes_have_their_parameter_counts(torch, tmp_path, sizes):
    import transformers

    layers, width, mlp, heads, vocabulary = sizes
    config = transformers.ModernBertConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=mlp, num_attention_heads=heads,
        vocab_size=vocabulary,
    )  # fmt: skip
    with torch.device('meta'):
        expected = sum(x.numel() for x in transformers.ModernBertForMaskedLM(config).parameters())
    config.architectures = ['ModernBertForMaskedLM']
    config.save_pretrained(tmp_path)
    assert parameter_count(read_config(tmp_path, nsp=False)) == expected


def test_a_model_of_one_block_is_read(tmp_path):
    import transformers

    sizes = {
        'num_hidden_layers': 1,
        'hidden_size': 32,
        'num_attention_heads': 4,
        'intermediate_size': 40,
        'pad_token_id': 0,
    }
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(vocab_size=V, **sizes))
    model.save_pretrained(tmp_path)
    assert not load_pretraining_model(str(tmp_path)).missing
