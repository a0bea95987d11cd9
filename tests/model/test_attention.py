"""Tests attention masks and the choice of the implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from bertjax.errors import UserError
from bertjax.model.attention import select
from bertjax.model.attention.dot_product import DotProduct
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS, choose_attention, describe_attention
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import ATTENTION, BertConfig

B, S, H, K = 3, 12, 2, 8
# The implementations for GPUs and TPUs have separate test files.
NAMES = [name for name, implementation in IMPLEMENTATIONS.items() if implementation.PLATFORM in ('', 'cpu')]


@pytest.fixture(scope='module')
def heads():
    """Returns query, key and value, float32 [B, S, H, K]."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((B, S, H, K)).astype(np.float32) for _ in range(3)]


def attend(name, heads, mask, queries=S):
    query, key, value = (jnp.asarray(x) for x in heads)
    attention = IMPLEMENTATIONS[name].attend
    return np.asarray(attention(query[:, :queries], key, value, mask, dropout_rate=0.0, dropout=None))


def by_numpy(query, key, value, visible):
    """Returns the attention of one head in one row: query [Q, K], key and value [S, K], visible bool [Q, S]."""
    scores = np.where(visible, query.astype(np.float64) @ key.T / np.sqrt(query.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('causal', [False, True])
def test_queries_attend_to_tokens_only_and_causal_ones_only_to_the_left(heads, name, causal):
    tokens = np.array([S, 7, 1])
    key_mask = (np.arange(S) < tokens[:, None]).astype(np.int32)
    key_mask[0, 3] = 0  # Padding need not be at the end.
    actual = attend(name, heads, AttentionMask(key_mask, causal=causal))
    for b in range(B):
        visible = np.broadcast_to(key_mask[b] > 0, (S, S))
        visible = visible & np.tri(S, dtype=bool) if causal else visible
        for h in range(H):
            expected = by_numpy(*(x[b, :, h] for x in heads), visible)
            np.testing.assert_allclose(actual[b, :, h], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    'causal, name',
    [
        (False, 'by_head_cpu'),
        pytest.param(True, 'dot_product', marks=pytest.mark.slow),
        pytest.param(False, 'dot_product', marks=pytest.mark.slow),
        pytest.param(True, 'by_head_cpu', marks=pytest.mark.slow),
    ],
)
def test_sequences_of_a_packed_row_do_not_attend_to_each_other(heads, name, causal):
    lengths = [[5, 4, 3], [12], [1, 2, 6]]  # The last row has 3 positions of padding.
    ids, key_mask = np.zeros((B, S), np.int32), np.zeros((B, S), np.int32)
    blocks = []
    for b, row in enumerate(lengths):
        for i, (start, length) in enumerate(zip(np.cumsum([0, *row]), row, strict=False)):
            ids[b, start : start + length], key_mask[b, start : start + length] = i + 1, 1
            blocks.append((b, slice(start, start + length)))
    actual = attend(name, heads, AttentionMask(key_mask, ids, causal=causal))
    for b, block in blocks:
        alone = [x[b : b + 1, block] for x in heads]
        ones = np.ones((1, alone[0].shape[1]), np.int32)
        expected = attend(name, alone, AttentionMask(ones, causal=causal), alone[0].shape[1])
        np.testing.assert_allclose(actual[b : b + 1, block], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize(
    'causal, packed',
    [
        (False, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, False), (True, False), (True, True))),
    ],
)
def test_the_first_queries_give_the_same_without_the_others(heads, name, causal, packed):
    key_mask = (np.arange(S) < np.array([S, 7, 1])[:, None]).astype(np.int32)
    ids = np.repeat(np.arange(3, dtype=np.int32), 4)[None].repeat(B, 0) if packed else None
    mask = AttentionMask(key_mask, ids, causal=causal)
    for queries in (1, 5):
        expected = attend(name, heads, mask)[:, :queries]
        np.testing.assert_allclose(attend(name, heads, mask, queries), expected, rtol=1e-6, atol=1e-7)


def test_the_config_allows_the_names_of_all_implementations():
    assert ('auto', *IMPLEMENTATIONS) == ATTENTION
    assert list(IMPLEMENTATIONS)[-1] == 'dot_product'  # dot_product supports everything.


def test_long_rows_on_a_cpu_use_by_head_cpu():
    x, mask = shapes(97)
    assert choose_attention('auto', x, x, mask, 0.1).name == 'by_head_cpu'
    x, mask = shapes(96)
    chosen = choose_attention('auto', x, x, mask, 0.1)
    assert str(chosen) == 'dot_product; not by_head_cpu: sequences of 96 tokens, but it needs more than 96'


class Limited(DotProduct):
    """An implementation for rows of up to 8 positions, without dropout."""

    def supports(self, query, key, mask, dropout_rate):
        if dropout_rate:
            return 'it has no dropout'
        return None if key.shape[1] <= 8 else f'rows of {key.shape[1]} positions'

    def attend(self, *inputs, dropout_rate, dropout):
        return super().attend(*inputs, dropout_rate=0.0, dropout=None) + 1.0


@pytest.fixture
def with_limited(monkeypatch):
    monkeypatch.setattr(select, 'IMPLEMENTATIONS', {'limited': Limited(), 'dot_product': DotProduct()})


def shapes(length):
    return jax.ShapeDtypeStruct((2, length, H, K), jnp.float32), AttentionMask(jnp.ones((2, length), jnp.int32))


def test_auto_takes_the_first_supporting_implementation_and_gives_reasons(with_limited):
    x, mask = shapes(8)
    assert str(choose_attention('auto', x, x, mask, 0.0)) == 'limited'
    assert str(choose_attention('auto', x, x, mask, 0.1)) == 'dot_product; not limited: it has no dropout'
    x, mask = shapes(9)
    assert str(choose_attention('auto', x, x, mask, 0.0)) == 'dot_product; not limited: rows of 9 positions'
    assert str(choose_attention('dot_product', *shapes(8)[:1] * 2, mask, 0.0)) == 'dot_product'


def test_a_named_implementation_runs_or_raises(with_limited):
    x, mask = shapes(8)
    assert choose_attention('limited', x, x, mask, 0.0).name == 'limited'
    x, mask = shapes(9)
    with pytest.raises(UserError, match=r"config.model.attention: found 'limited' \(rows of 9 positions\), expected"):
        choose_attention('limited', x, x, mask, 0.0)


@pytest.mark.slow
def test_the_model_runs_the_choice_and_logs_it_once(with_limited, small_config, make_params, monkeypatch):
    lines = []
    monkeypatch.setattr(logging, 'info', lambda line, *args: lines.append(line))
    select._log_once.cache_clear()
    inputs = [np.ones((2, 8), np.int32)] * 3 + [np.zeros((2, 1), np.int32)]
    config = small_config(scan_layers=False)
    model = BertForPreTraining(config)
    params = make_params(model)
    lines.clear()
    select._log_once.cache_clear()
    outputs = {}
    for name in ('auto', 'dot_product'):
        chosen = BertForPreTraining(small_config(scan_layers=False, attention=name))
        for _ in range(2):
            outputs[name] = chosen.apply({'params': params}, *inputs)['mlm_logits']
    assert not np.allclose(outputs['auto'], outputs['dot_product'])  # 'limited' adds 1.
    assert lines == [
        f'attention of 2 x 8 x 4 x 8 over 2 x 8 x 4 x 8 in float32: {name}' for name in ('limited', 'dot_product')
    ]


def test_the_description_is_for_the_training_step(with_limited):
    config = BertConfig(vocab_size=9, num_layers=1, width=8, num_heads=2, mlp_dim=8)
    assert describe_attention(config, 4, 8) == 'dot_product; not limited: it has no dropout'
    assert describe_attention(BertConfig(attention_dropout=0.0), 4, 8) == 'limited'
