"""Tests that a model like ModernBERT has finite logits and gradients for rows of any length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from marks import slow

from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params, unstack_layers

MODERN = dict(
    vocab_size=60, num_layers=2, width=32, num_heads=2, mlp_dim=24, max_positions=900, num_segments=0, nsp=False,
    dropout=0.0, attention_dropout=0.0, pre_norm=True, first_attention_norm=False, norm_bias=False, position='rope',
    projection_bias=False, mlp='geglu', attention_window=130, pooler='transform', layer_norm_eps=1e-5,
)  # fmt: skip
# Rows of only padding, of one token, within half a window, of about one window, and longer.
LENGTHS = np.array([0, 1, 5, 66, 131, 150, 299, 300])


@functools.cache
def _params():
    model = BertForPreTraining(BertConfig(**MODERN))
    return nn.unbox(init_params(model, jax.random.key(0)))


def _rows(length):
    mask = (np.arange(length) < LENGTHS[:, None]).astype(np.int32)
    ids = np.random.default_rng(0).integers(5, 60, mask.shape).astype(np.int32)
    return np.where(mask, ids, 0).astype(np.int32), np.zeros_like(mask), mask


@pytest.mark.parametrize(
    'attention, dtype, scan',
    [
        ('by_head_cpu', 'float32', True),
        pytest.param('by_head_cpu', 'bfloat16', False, marks=pytest.mark.slow),
        pytest.param('dot_product', 'bfloat16', True, marks=pytest.mark.slow),
    ],
)
def test_rows_of_every_length_are_finite(attention, dtype, scan):
    """Other programs had NaN logits with padding (AnswerDotAI/ModernBERT#209, #163; transformers#35988)."""
    model = BertForPreTraining(BertConfig(**MODERN, attention=attention, dtype=dtype, scan_layers=scan))
    inputs, positions = _rows(300), np.tile(np.arange(300, dtype=np.int32), (len(LENGTHS), 1))
    real = inputs[2] > 0

    def loss(params):
        logits = model.apply({'params': params}, *inputs, positions)['mlm_logits']
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits), inputs[0][..., None], -1)[..., 0]
        return -(scores * real).sum() / real.sum(), logits

    params = _params() if scan else unstack_layers(_params())
    (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert np.isfinite(value) and np.isfinite(logits).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
    exact = _logits('dot_product')
    error = np.abs(np.asarray(logits) - exact)[real].max() / np.abs(exact[real]).max()
    assert error < (1e-5 if dtype == 'float32' else 0.05)


@functools.cache
def _logits(attention):
    model = BertForPreTraining(BertConfig(**MODERN, attention=attention))
    positions = np.tile(np.arange(300, dtype=np.int32), (len(LENGTHS), 1))
    apply = jax.jit(lambda params: model.apply({'params': params}, *_rows(300), positions)['mlm_logits'])
    return np.asarray(apply(_params()))


@pytest.mark.parametrize('dtype', ['float32', *slow('bfloat16')])
def test_packed_rows_of_every_length_are_finite(dtype):
    model, params = BertForPreTraining(BertConfig(**MODERN, dtype=dtype), packing=4), _params()
    inputs = _rows(900)
    encode = jax.jit(lambda params, *inputs: model.apply({'params': params}, *inputs, method='encode')[0])
    states = encode(params, *inputs)
    assert np.isfinite(np.asarray(states, np.float32)).all()


@pytest.mark.slow
def test_padding_has_no_effect():
    together = _logits('auto')
    model = BertForPreTraining(BertConfig(**MODERN))
    ids, _, _ = _rows(300)
    for row, length in enumerate(LENGTHS.tolist()):
        if length in (5, 131):
            ones, positions = np.ones((1, length), np.int32), np.arange(length, dtype=np.int32)[None]
            inputs = (ids[row : row + 1, :length], ones, ones, positions)
            alone = jax.jit(model.apply)({'params': _params()}, *inputs)['mlm_logits']
            np.testing.assert_allclose(together[row, :length], alone[0], atol=1e-5)


def test_a_window_changes_only_rows_that_are_longer():
    """If the window were ignored, the logits would be equal (semantic-router#3406)."""
    model = BertForPreTraining(BertConfig(**{**MODERN, 'attention_window': 0, 'rope_local_theta': 10_000.0}))
    positions = np.tile(np.arange(300, dtype=np.int32), (len(LENGTHS), 1))
    whole = np.asarray(jax.jit(model.apply)({'params': _params()}, *_rows(300), positions)['mlm_logits'])
    difference = [np.abs(whole - _logits('auto'))[row, :length].max() for row, length in enumerate(LENGTHS) if length]
    assert max(difference[:3]) < 1e-5 < 1e-4 < min(difference[3:])
