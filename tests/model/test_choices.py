"""Tests each option of the encoder against a separate implementation in float64 PyTorch."""

import re

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from marks import SCAN, mostly_slow

from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS, attend, choose_attention
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig, parameter_count
from bertjax.model.stacking import init_params, stack_layers

B, S, V = 3, 20, 50
SMALL = dict(
    vocab_size=V, num_layers=3, width=24, num_heads=3, mlp_dim=40, max_positions=32, nsp=False, dropout=0.0,
    attention_dropout=0.0, layer_norm_eps=1e-5,
)  # fmt: skip
# Together, these models have each option.
CHOICES = {
    'windows': {
        'attention_window': 6, 'global_every': 2, 'position': 'rope', 'rope_theta': 300.0, 'rope_local_theta': 50.0,
        'mlp': 'geglu',
    },
    'windows without a global layer': {
        'attention_window': 9, 'global_every': 0, 'norm': 'rmsnorm', 'mlp': 'swiglu', 'projection_bias': False,
    },
    'pre_norm': {'norm': 'rmsnorm', 'norm_bias': False, 'pre_norm': True, 'mlp': 'relu2', 'tie_embeddings': False},
    'no first norm': {
        'pre_norm': True, 'first_attention_norm': False, 'qk_norm': True, 'position': 'rope', 'norm_bias': False,
    },
}  # fmt: skip


def _reference(torch, config, params, ids, segments, mask):
    """Returns the logits of all positions [B, S, V]; `params` is our flat tree with stacked layers, float64."""
    functional = torch.nn.functional
    c, K = config, config.head_dim

    def linear(name, x, layer=None, inputs=1, outputs=1):
        kernel = params[f'{name}/kernel'] if layer is None else params[f'{name}/kernel'][layer]
        bias = params.get(f'{name}/bias')
        rows = int(np.prod(kernel.shape[:inputs]))
        y = x @ kernel.reshape(rows, -1)
        return y if bias is None else y + (bias if layer is None else bias[layer]).reshape(-1)

    def norm(name, x, layer=None):
        scale, bias = params[f'{name}/scale'], params.get(f'{name}/bias')
        scale, bias = (part if part is None or layer is None else part[layer] for part in (scale, bias))
        if c.norm == 'layernorm':
            x = x - x.mean(-1, keepdim=True)
        y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + c.layer_norm_eps) * scale
        return y if bias is None else y + bias

    def activation(x):
        if c.mlp in ('gelu', 'geglu'):
            return functional.gelu(x)
        return functional.silu(x) if c.mlp == 'swiglu' else functional.relu(x) ** 2

    def rotate(x, theta):  # [B, S, H, K]; multiplies complex numbers
        angles = torch.arange(S)[:, None] * theta ** (-torch.arange(0, K, 2).double() / K)
        z = torch.complex(x[..., : K // 2], x[..., K // 2 :]) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([z.real, z.imag], -1)

    x = params['encoder/embeddings/token/embedding'][ids] + params['encoder/embeddings/segment/embedding'][segments]
    if c.position == 'learned':
        x = x + params['encoder/embeddings/position/embedding'][:S]
    x = norm('encoder/embeddings/norm', x)
    for i in range(c.num_layers):
        block = 'encoder/layers'
        is_global = not c.attention_window or (c.global_every > 0 and i % c.global_every == 0)
        y = norm(f'{block}/attention_norm', x, i) if c.pre_norm and (i or c.first_attention_norm) else x
        q, k, v = (linear(f'{block}/attention/{name}', y, i).reshape(B, S, -1, K) for name in ('query', 'key', 'value'))
        if c.qk_norm:
            q, k = norm(f'{block}/attention/query_norm', q, i), norm(f'{block}/attention/key_norm', k, i)
        if c.position == 'rope':
            q, k = (rotate(part, c.rope_theta if is_global else c.rope_local_theta) for part in (q, k))
        scores = torch.einsum('bqhk,bshk->bhqs', q, k) / K**0.5
        hidden = mask[:, None, None, :] == 0
        if not is_global:
            distance = (torch.arange(S)[:, None] - torch.arange(S)[None]).abs()
            hidden = hidden | (distance > c.attention_window // 2)
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        y = torch.einsum('bhqs,bshk->bqhk', weights, v).reshape(B, S, -1)
        y = linear(f'{block}/attention/output', y, i, inputs=2)
        x = x + y if c.pre_norm else norm(f'{block}/attention_norm', x + y, i)
        y = norm(f'{block}/mlp_norm', x, i) if c.pre_norm else x
        up = linear(f'{block}/mlp/up', y, i)
        inner = activation(linear(f'{block}/mlp/gate', y, i)) * up if 'glu' in c.mlp else activation(up)
        y = linear(f'{block}/mlp/down', inner, i)
        x = x + y if c.pre_norm else norm(f'{block}/mlp_norm', x + y, i)
    x = norm('encoder/final_norm', x) if c.pre_norm else x
    x = norm('mlm/norm', activation(linear('mlm/dense', x)))
    name = 'encoder/embeddings/token/embedding' if c.tie_embeddings else 'mlm/decoder/embedding'
    return (x @ params[name].T + params['mlm/bias'])[..., :V]


@pytest.fixture(scope='module')
def torch():
    return pytest.importorskip('torch', reason='compares with PyTorch')


@pytest.mark.parametrize('choice', mostly_slow(CHOICES, 'pre_norm'))  # test_modernbert.py has windows
@SCAN
def test_values_and_gradients_equal_the_reference(torch, make_params, choice, scan):
    config = BertConfig(**{**SMALL, **CHOICES[choice], 'scan_layers': scan})
    rng = np.random.default_rng(0)
    lengths = np.array([S, 13, 5])
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    ids, segments = rng.integers(0, V, (B, S)).astype(np.int32), rng.integers(0, 2, (B, S)).astype(np.int32)
    positions = np.tile(np.arange(S, dtype=np.int32), (B, 1))
    model = BertForPreTraining(config)
    params = make_params(model)
    flat = {
        name: (name[-1] == 'scale') + 0.2 * rng.standard_normal(x.shape).astype(np.float32)
        for name, x in flatten_dict(params).items()
    }
    params = unflatten_dict(flat)
    weights = rng.standard_normal((B, S, V)).astype(np.float32) * (mask[..., None] > 0)

    def loss(params):
        logits = model.apply({'params': params}, ids, segments, mask, positions)['mlm_logits'][..., :V]
        return (weights * logits).sum(), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    ours = flatten_dict(params if scan else stack_layers(params), sep='/')
    gradients = flatten_dict(gradients if scan else stack_layers(jax.device_get(gradients)), sep='/')
    theirs = {name: torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True) for name, x in ours.items()}
    expected = _reference(torch, config, theirs, *(torch.tensor(x).long() for x in (ids, segments, mask)))
    (torch.tensor(weights) * expected).sum().backward()
    real = mask > 0
    np.testing.assert_allclose(np.asarray(logits)[real], expected.detach().numpy()[real], rtol=1e-4, atol=1e-4)
    for name, x in gradients.items():
        other = np.zeros_like(x) if theirs[name].grad is None else theirs[name].grad.numpy()
        np.testing.assert_allclose(x, other, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(other).max()), err_msg=name)


@pytest.mark.parametrize('choice', CHOICES)
def test_parameter_count_equals_the_size_of_the_tree(choice):
    config = BertConfig(**{**SMALL, 'vocab_size': 128, **CHOICES[choice]})
    shapes = jax.eval_shape(lambda: nn.unbox(init_params(BertForPreTraining(config), jax.random.key(0))))
    unused = 0 if config.first_attention_norm else (1 + config.norm_bias) * config.width
    assert parameter_count(config) == sum(x.size for x in jax.tree.leaves(shapes)) - unused


@pytest.mark.parametrize(
    'init, factor',
    [
        ('megatron', 6**-0.5),
        pytest.param('bert', 1.0, marks=pytest.mark.slow),
        pytest.param('zero_output', 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_initial_scale_of_projections_into_the_residual_stream(make_params, init, factor):
    config = BertConfig(**{**SMALL, 'width': 192, 'mlp_dim': 400, 'init': init})
    params = make_params(BertForPreTraining(config))
    layers = params['encoder']['layers']
    truncated = 0.02 * 0.8796  # The standard deviation of a normal truncated at two deviations.
    for kernel in (layers['attention']['output']['kernel'], layers['mlp']['down']['kernel']):
        assert np.std(kernel) == pytest.approx(factor * truncated, rel=0.02)
    for kernel in (layers['attention']['query']['kernel'], layers['mlp']['up']['kernel']):
        assert np.std(kernel) == pytest.approx(truncated, rel=0.02)


@pytest.mark.parametrize('name', IMPLEMENTATIONS)
def test_a_window_is_honored_or_refused(name):
    rng = np.random.default_rng(0)
    length = 160
    query, key, value = (rng.standard_normal((2, length, 2, 16)).astype(np.float32) for _ in range(3))
    mask = AttentionMask(np.ones((2, length), np.int32), window=20)
    try:
        choose_attention(name, query, key, mask, 0.0)
    except UserError as error:
        assert re.search(r'does not support a window|only for|is a kernel for', str(error))
        assert name not in ('dot_product', 'by_head_cpu')
        return
    actual = IMPLEMENTATIONS[name].attend(query, key, value, mask, dropout_rate=0.0, dropout=None)
    scores = np.einsum('bqhk,bshk->bhqs', query, key).astype(np.float64) / 4
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= 10
    weights = np.where(near, np.exp(scores), 0)
    expected = np.einsum('bhqs,bshk->bqhk', weights / weights.sum(-1, keepdims=True), value)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'first_attention_norm': False}, 'config.model.first_attention_norm'),
        ({'pooler': 'transform', 'nsp': True}, 'config.model.pooler'),
        ({'position': 'rope', 'width': 27, 'num_heads': 3}, 'config.model.position'),
        ({'mlp': 'glu'}, 'config.model.mlp'),
    ],
)
def test_invalid_options_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        BertConfig(**{**SMALL, **changes})


@pytest.mark.slow
def test_a_named_implementation_computes_the_blocks_of_a_narrow_window():
    x = jax.random.normal(jax.random.key(0), (3, 2, 300, 2, 8)).astype('bfloat16')
    mask = AttentionMask(np.ones((2, 300), np.int32), window=128)
    named, plain = (
        attend(name, *x, mask, dropout_rate=0.0, dropout=None).astype('float32')
        for name in ('by_head_cpu', 'dot_product')
    )
    np.testing.assert_allclose(named, plain, atol=0.02)
