"""Tests task heads: their shapes, their inputs, and the use of pre-trained parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from marks import mostly_slow, slow

from bertjax.errors import UserError
from bertjax.model.attention.select import IMPLEMENTATIONS
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.heads import (
    LAYERS,
    BertForClassification,
    BertForMultipleChoice,
    BertForSpans,
    BertForTokens,
)
from bertjax.model.stacking import init_params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context, state_shardings

CASES = {
    'classification': (BertForClassification, {'outputs': 3}),
    'multiple_choice': (BertForMultipleChoice, {}),
    'spans': (BertForSpans, {}),
    'tokens': (BertForTokens, {'outputs': 5}),
}


OTHER_LAYERS = [(name, True) for name in LAYERS if name not in ('concat_last_four', 'sum_last_four')]
OTHER_LAYERS.append(('sum_all', False))


@pytest.fixture(scope='session')
def draw_head(draw_params):
    return lambda model: draw_params(lambda key: init_params(model, key))


def _inputs(case, inputs):
    return tuple(x.reshape(4, 2, 16) if case == 'multiple_choice' else x for x in inputs[:3])


@pytest.mark.parametrize('units', [0, *slow(10)], ids=['plain', 'bilstm'])
@pytest.mark.parametrize('case', mostly_slow(CASES, 'tokens'))
def test_padding_has_no_effect_and_pretrained_parameters_fit(case, units, small_config, inputs, draw_head, make_model):
    head, options = CASES[case]
    model = head(small_config(dropout=0.1), **options, bilstm_units=units)
    ids, segments, mask = _inputs(case, inputs)
    params = draw_head(model)
    _, pretrained = make_model()
    shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)  # noqa: E731
    assert shapes(params['encoder']) == shapes(pretrained['encoder'])
    assert ('bilstm' in params) == bool(units)
    if 'pooler' in params and not units:
        assert shapes(params['pooler']) == shapes(pretrained['pooler'])
    apply = jax.jit(lambda p, i: model.apply({'params': p}, i, segments, mask))
    one, two = (apply(params, np.where(mask > 0, ids, other).astype(np.int32)) for other in (0, 99))
    expected = {
        'classification': {'logits': (8, 3)},
        'multiple_choice': {'logits': (4, 2)},
        'spans': {'start_logits': (8, 16), 'end_logits': (8, 16)},
        'tokens': {'token_logits': (8, 16, 5)},
    }
    assert {name: x.shape for name, x in one.items()} == expected[case]
    for name, x in one.items():
        assert x.dtype == np.float32
        read = mask.any(-1) if name == 'logits' else mask > 0
        np.testing.assert_array_equal(np.asarray(x)[read], np.asarray(two[name])[read])


@pytest.mark.parametrize(
    'causal, units',
    [(True, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 0), (True, 10)))],
)
def test_classification_depends_on_the_last_word(small_config, inputs, draw_head, causal, units):
    """[CLS] of a causal encoder attends only to itself, so the head must use another position."""
    model = BertForClassification(small_config(causal=causal), 3, bilstm_units=units)
    params = draw_head(model)
    ids, segments, mask = (x[1:2] for x in inputs[:3])  # A row of 12 tokens.
    other = ids.copy()
    other[0, 11] = (ids[0, 11] + 1) % 150
    apply = jax.jit(lambda x: model.apply({'params': params}, x, segments, mask))
    one, two = apply(ids), apply(other)
    assert not np.array_equal(one['logits'], two['logits'])


@pytest.mark.parametrize('case', mostly_slow(CASES, 'classification'))
def test_the_logits_of_a_bfloat16_model_are_not_rounded(case, small_config, inputs, draw_head):
    """Otherwise, close logits of candidates would be equal."""
    head, options = CASES[case]
    model = head(small_config(dtype='bfloat16'), **options)
    params = draw_head(model)
    for x in jax.jit(lambda params: model.apply({'params': params}, *_inputs(case, inputs)))(params).values():
        real = np.asarray(x)[np.abs(x) > 1e-6]
        assert np.mean(real == real.astype(jnp.bfloat16).astype(np.float32)) < 0.5


@pytest.mark.slow
def test_a_named_attention_without_single_queries_does_not_compute_the_last_one(
    small_config, inputs, draw_head, monkeypatch
):
    """The last block of a classifier has only [CLS] as query."""
    plain = BertForClassification(small_config(attention='dot_product', scan_layers=False), 3)
    params = draw_head(plain)
    expected = plain.apply({'params': params}, *inputs[:3])['logits']
    monkeypatch.setattr(
        IMPLEMENTATIONS['by_head_cpu'],
        'supports',
        lambda query, key, *_: None if query.shape == key.shape else 'it computes all positions',
    )
    named = BertForClassification(small_config(attention='by_head_cpu', scan_layers=False), 3)
    np.testing.assert_allclose(named.apply({'params': params}, *inputs[:3])['logits'], expected, atol=1e-5)


def test_head_dropout_needs_its_key_and_changes_the_logits(small_config, inputs, draw_head):
    model = BertForTokens(small_config(dropout=0.3), 4, bilstm_units=6)
    params = draw_head(model)
    one, same, other = (_token_logits(model, params, inputs, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@functools.partial(jax.jit, static_argnames='model')
def _token_logits(model, params, inputs, key=None):
    dropout = None if key is None else Dropout.from_key(key, len(inputs[0]))
    return model.apply({'params': params}, *inputs[:3], dropout=dropout)['token_logits']


@functools.partial(jax.jit, static_argnames='encoder')
def _all_layers(encoder, params, inputs):
    return encoder.apply({'params': params}, *inputs, all_layers=True)[1]


def _states(config, params, inputs):
    """Returns the hidden states of all layers of the encoder, [L + 1, B, S, D]."""
    return np.asarray(_all_layers(BertEncoder(config), params['encoder'], inputs[:3]), np.float64)


@pytest.mark.parametrize(
    'layers, scan',
    [
        *((name, True) for name in ('concat_last_four', 'sum_last_four')),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_LAYERS),
    ],
)
def test_the_head_uses_the_chosen_layers(small_config, inputs, draw_head, layers, scan):
    config = small_config(num_layers=5, scan_layers=scan)
    model = BertForTokens(config, 4, layers=layers)
    params = draw_head(model)
    weights = None
    if layers.startswith('sum'):
        count = {'sum_last_four': 4, 'sum_all': 5}[layers]
        assert jax.tree.map(np.shape, params['mix']) == {'weights': (count,), 'scale': (1,)}
        weights = np.linspace(-1, 2, count)
        params = {**params, 'mix': {'weights': weights.astype(np.float32), 'scale': np.float32([1.7])}}
        weights = 1.7 * np.exp(weights) / np.exp(weights).sum()
    else:
        assert 'mix' not in params
    states = _states(config, params, inputs)
    features = {
        'embeddings': lambda: states[0],
        'last': lambda: states[5],
        'second_to_last': lambda: states[4],
        'sum_last_four': lambda: np.einsum('N,NBSD->BSD', weights, states[2:]),
        'concat_last_four': lambda: np.concatenate([states[2], states[3], states[4], states[5]], -1),
        'sum_all': lambda: np.einsum('N,NBSD->BSD', weights, states[1:]),
        'mean_last_four': lambda: np.mean(states[2:], axis=0),
    }[layers]()
    head = params['head']
    assert head['kernel'].shape == (128 if layers == 'concat_last_four' else 32, 4)
    expected = features @ np.asarray(head['kernel'], np.float64) + np.asarray(head['bias'])
    np.testing.assert_allclose(_token_logits(model, params, inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_initial_mix_of_layers_is_the_mean(small_config, inputs, make_params):
    model = BertForTokens(small_config(), 4, layers='sum_all')
    params = make_params(model)
    features = _states(model.config, params, inputs)[1:].mean(0)
    expected = features @ np.asarray(params['head']['kernel'], np.float64)
    np.testing.assert_allclose(_token_logits(model, params, inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    'layers, units',
    [('sum_all', 6), ('last', 0)],
)
def test_a_frozen_encoder_has_no_gradient(small_config, inputs, draw_head, layers, units):
    def gradient(frozen):
        model = BertForTokens(small_config(num_layers=4, dropout=0.3), 4, units, layers, frozen)
        params = draw_head(model)

        def loss(params):
            dropout = Dropout.from_key(jax.random.key(3), len(inputs[0]))
            logits = model.apply({'params': params}, *inputs[:3], dropout=dropout)['token_logits']
            return (logits**2).sum()

        return jax.tree.map(lambda g: float(np.abs(g).max()), jax.jit(jax.grad(loss))(params))

    frozen, tuned = gradient(True), gradient(False)
    assert set(jax.tree.leaves(frozen['encoder'])) == {0.0}
    assert min(jax.tree.leaves(tuned['encoder']['layers']['mlp'])) > 0
    for name in set(frozen) - {'encoder'}:
        assert min(jax.tree.leaves(frozen[name])) > 0, name


def test_a_frozen_encoder_has_no_dropout(small_config, inputs, draw_head):
    """The test uses attention dropout, which only the encoder has; `config.dropout` also applies to the head."""
    config = small_config(dropout=0.0, attention_dropout=0.4)
    tuned, frozen = (BertForTokens(config, 4, frozen=value) for value in (False, True))
    params = draw_head(tuned)
    plain = _token_logits(frozen, params, inputs)
    assert np.array_equal(_token_logits(frozen, params, inputs, jax.random.key(0)), plain)
    assert not np.array_equal(_token_logits(tuned, params, inputs, jax.random.key(0)), plain)


def test_an_encoder_has_enough_layers(small_config):
    with pytest.raises(UserError, match=r"'concat_last_four' with an encoder of 3 layers, expected at least 4 layers"):
        BertForClassification(small_config(num_layers=3), 3, layers='concat_last_four')


def test_a_layer_mix_works_on_a_mesh(small_config, inputs):
    model = BertForTokens(small_config(num_layers=4), 4, bilstm_units=6, layers='sum_last_four')
    mesh = make_mesh({'data': 2, 'fsdp': 2, 'tensor': 2})
    with mesh_context(mesh):
        abstract = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
        shardings = state_shardings(abstract, mesh)
    assert {x.spec for x in jax.tree.leaves(shardings['mix'])} == {PartitionSpec(None)}
    assert shardings['head']['kernel'].spec == PartitionSpec('fsdp', None)
