"""Tests properties of the encoder and its heads for any weights; tests/parity compares with transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import SCAN, slow

from bertjax.errors import UserError
from bertjax.losses import pretraining_losses
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.layers import Norm, gelu
from bertjax.model.stacking import stack_layers, unstack_layers

# In these tests, compiling takes much longer than running.
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
DROPOUT = {'dropout': 0.1, 'attention_dropout': 0.1}


def _forward(model, params, inputs, key=None):
    dropout = None if key is None else Dropout.from_key(jax.random.key(key), len(inputs[0]))
    return model.apply({'params': params}, *inputs, dropout=dropout)


@functools.cache
def _compiled(model, dropped):
    forward = lambda p, i, key: _forward(model, p, i, key if dropped else None)  # noqa: E731
    return jax.jit(forward, compiler_options=QUICK)


def _apply(model, params, inputs, key=None):
    return _compiled(model, key is not None)(params, tuple(inputs), 0 if key is None else key)


@functools.cache
def _encoder(model):
    return jax.jit(lambda p, i: model.apply({'params': p}, *i, method='encode'), compiler_options=QUICK)


def _encode(model, params, inputs):
    return _encoder(model)(params, tuple(inputs[:3]))


def _total(model, params, inputs, key=None):
    rows, P = inputs[3].shape
    batch = {
        'masked_ids': np.tile(np.arange(P, dtype=np.int32) + 7, (rows, 1)),
        'masked_weights': np.repeat((inputs[2].sum(1) > 0).astype(np.float32)[:, None], P, 1),
        'nsp_labels': np.arange(rows, dtype=np.int32) % 2,
        'nsp_weights': (inputs[2].sum(1) > 0).astype(np.float32),
    }
    losses = pretraining_losses(_forward(model, params, inputs, key), batch)
    return sum(losses[name][0] / losses[name][1] for name in losses if name.endswith('loss'))


def _equations(jaxpr, name):
    """Yields every equation of the primitive `name`, including those in loops and calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, 'jaxpr', inner)
                if hasattr(inner, 'eqns'):
                    yield from _equations(inner, name)


@pytest.mark.slow
def test_scanned_and_unrolled_models_have_equal_initial_values_and_dropout(make_model, inputs):
    scanned, params = make_model(**DROPOUT)
    unrolled, unstacked = make_model(**DROPOUT, scan_layers=False)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(params), unstacked)
    jax.tree.map(np.testing.assert_array_equal, stack_layers(unstacked), params)
    one, other = _apply(scanned, params, inputs, 3), _apply(unrolled, unstacked, inputs, 3)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_initial_values_differ_between_blocks_and_have_the_requested_deviation(make_model, small_config):
    _, params = make_model(init_stddev=0.05)
    kernel = np.asarray(params['encoder']['layers']['mlp']['up']['kernel'])
    assert not np.array_equal(kernel[0], kernel[1])
    assert np.abs(kernel).max() <= 2 * 0.05
    assert kernel.std() == pytest.approx(0.88 * 0.05, rel=0.03)  # A normal truncated at two deviations.


@pytest.mark.slow
def test_dropout_depends_on_the_key_and_is_optional(make_model, inputs):
    for changes in ({'dropout': 0.5}, {'attention_dropout': 0.5}):
        model, params = make_model(**changes)
        runs = [np.asarray(_apply(model, params, inputs, key)['mlm_logits']) for key in (None, None, 1, 1, 2)]
        assert np.array_equal(runs[0], runs[1]) and np.array_equal(runs[2], runs[3])
        assert not np.array_equal(runs[0], runs[2]) and not np.array_equal(runs[2], runs[4])


@pytest.mark.parametrize('causal', [False, *slow(True)])
def test_padding_has_no_effect_on_tokens(make_model, inputs, causal):
    model, params = make_model(causal=causal)
    ids, segments, mask, _ = inputs
    other = np.where(mask > 0, ids, 99).astype(np.int32)
    one, two = (_encode(model, params, (x, segments, mask))[1] for x in (ids, other))
    real = mask > 0
    np.testing.assert_array_equal(np.asarray(one)[:, real], np.asarray(two)[:, real])
    assert not np.array_equal(one, two)


def test_causal_positions_do_not_depend_on_later_tokens(make_model, inputs):
    ids, segments, mask, _ = inputs
    other = ids.copy()
    other[0, 9] = (ids[0, 9] + 1) % 150
    for causal in (True, False):
        model, params = make_model(causal=causal)
        one, two = (np.asarray(_encode(model, params, (x, segments, mask))[0]) for x in (ids, other))
        assert np.array_equal(one[0, :9], two[0, :9]) == causal
        assert not np.array_equal(one[0, 9:], two[0, 9:])


@pytest.mark.slow
def test_a_row_of_padding_only_is_finite_and_has_no_gradient(make_model, inputs):
    for changes in ({}, {'causal': True}):
        model, params = make_model(**changes)
        grads = jax.jit(jax.grad(lambda p, i, m=model: _total(m, p, i)), compiler_options=QUICK)
        whole = grads(params, inputs)  # NaN in an output with weight 0 would make the gradients NaN
        without = grads(params, tuple(x[:7] for x in inputs))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), whole, without)


def test_the_padding_of_the_vocabulary_has_no_probability_and_no_gradient(make_model, inputs):
    model, params = make_model()
    config = model.config
    assert config.padded_vocab_size == 256
    table = params['encoder']['embeddings']['token']['embedding']
    assert not table[config.vocab_size :].any() and table[: config.vocab_size].any(-1).all()
    large = jax.tree.map(lambda x: x, params)
    large['mlm']['bias'] = large['mlm']['bias'].at[config.vocab_size :].set(1e6)
    logits = np.asarray(_apply(model, large, inputs)['mlm_logits'])
    assert logits.shape == (8, 3, 256) and (logits[..., config.vocab_size :] == -1e9).all()
    assert logits.argmax(-1).max() < config.vocab_size
    grads = jax.jit(jax.grad(lambda p: _total(model, p, inputs)), compiler_options=QUICK)(large)
    assert not grads['mlm']['bias'][config.vocab_size :].any() and grads['mlm']['bias'][: config.vocab_size].all()
    assert not grads['encoder']['embeddings']['token']['embedding'][config.vocab_size :].any()


def test_bfloat16_keeps_statistics_softmax_and_logits_in_float32(make_model, inputs):
    model, params = make_model(dtype='bfloat16')
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    outputs = _apply(model, params, inputs)
    assert outputs['mlm_logits'].dtype == outputs['nsp_logits'].dtype == jnp.float32
    hidden, layers, pooled = _encode(model, params, inputs)
    assert hidden.dtype == layers.dtype == pooled.dtype == jnp.bfloat16
    jaxpr = jax.make_jaxpr(lambda p: _total(model, p, inputs))(params).jaxpr
    for name in ('exp', 'rsqrt', 'log'):
        types = {equation.outvars[0].aval.dtype for equation in _equations(jaxpr, name)}
        assert types == {jnp.dtype('float32')}, name
    products = [equation.invars[0].aval.dtype for equation in _equations(jaxpr, 'dot_general')]
    # Only the small product of the pair head is float32. More float32 products would be slow without any benefit.
    assert products.count(jnp.float32) == 1 and set(products) == {jnp.dtype('bfloat16'), jnp.dtype('float32')}
    exact, _ = make_model()
    np.testing.assert_allclose(outputs['mlm_logits'], _apply(exact, params, inputs)['mlm_logits'], atol=0.02)


@pytest.mark.slow
def test_parameters_may_be_stored_in_bfloat16(make_model, inputs):
    model, params = make_model(param_dtype='bfloat16')
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('bfloat16')}
    assert np.isfinite(_apply(model, params, inputs)['mlm_logits']).all()


def test_layer_norm_is_accurate_for_a_large_mean():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    module = Norm(BertConfig(vocab_size=9))
    params = {'scale': np.full(64, 2.0, np.float32), 'bias': np.full(64, 0.5, np.float32)}
    y = module.apply({'params': params}, x + 1000)
    exact = (x + np.float32(1000)).astype(np.float64)
    expected = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-12) * 2 + 0.5
    np.testing.assert_allclose(y, expected, atol=2e-3)


@pytest.mark.slow
@SCAN
def test_pre_norm_normalizes_the_inputs_of_sublayers_and_the_final_output(make_model, inputs, scan):
    model, params = make_model(pre_norm=True, scan_layers=scan)
    zeroed = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.zeros_like(x) if {'output', 'down'} & {key.key for key in path} else x, params
    )
    _, layers, _ = _encode(model, zeroed, inputs)
    for hidden in layers[1:-1]:  # Blocks that add zeros do not change the hidden states.
        np.testing.assert_array_equal(hidden, layers[0])
    encoder = {**params['encoder'], 'final_norm': {'scale': jnp.full(32, 3.0), 'bias': jnp.full(32, 0.25)}}
    hidden, layers, _ = _encode(model, {**params, 'encoder': encoder}, inputs)
    np.testing.assert_array_equal(hidden, layers[-1])
    np.testing.assert_allclose(hidden.mean(-1), 0.25, atol=1e-5)
    np.testing.assert_allclose(hidden.std(-1), 3.0, rtol=1e-4)


@pytest.mark.slow
def test_remat_changes_the_recomputed_products_but_no_gradients(make_model, inputs):
    grads, products = {}, {}
    for remat in ('none', 'elementwise', 'dots', 'full'):
        model, params = make_model(remat=remat, scan_layers=remat != 'dots', num_layers=1, dropout=0.1)
        function = jax.grad(lambda p, m=model: _total(m, p, inputs, 5))
        grads[remat] = jax.jit(function, compiler_options=QUICK)(params)
        if remat == 'dots':  # the only unrolled model
            grads[remat] = stack_layers(grads[remat])
        products[remat] = len(list(_equations(jax.make_jaxpr(function)(params).jaxpr, 'dot_general')))
    # 'elementwise' recomputes the product for the scores, 'dots' both products of attention, 'full' also six
    # projections.
    assert products['elementwise'] - products['none'] == 1
    assert products['dots'] - products['none'] == 2
    assert products['full'] - products['dots'] == 6
    for remat in ('elementwise', 'dots', 'full'):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads[remat], grads['none'])


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'causal': True, 'pre_norm': True}], ids=str)
def test_first_only_needs_fewer_flops_for_the_same_result(make_model, small_config, inputs, changes):
    _, params = make_model(scan_layers=False, **changes)
    encoder = BertEncoder(small_config(scan_layers=False, **changes))

    def total(params, first_only):
        hidden, _ = encoder.apply({'params': params}, *inputs[:3], first_only=first_only)
        return jnp.sin(hidden[:, :1] * 3.0).sum(), hidden[:, :1]

    results = {}
    for first_only in (True, False):
        compiled = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1, compiler_options=QUICK)
        lowered = compiled.lower(params['encoder'], first_only).compile()
        (_, hidden), gradients = lowered(params['encoder'])  # the sum is not compared; its rounding error is larger
        results[first_only] = (hidden, gradients), lowered.cost_analysis()['flops']
    (short, short_flops), (full, full_flops) = results[True], results[False]

    def close(x, y):
        # Small gradients may be differences of large terms, so the tolerance is relative to the largest value.
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * max(np.abs(y).max(), 1))

    jax.tree.map(close, short, full)
    assert short_flops < 0.8 * full_flops  # The model has three blocks.


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_gelu_and_its_gradient_equal_those_of_jax(dtype):
    x = jnp.concatenate([jnp.linspace(-12, 12, 4001), jnp.asarray([-1e4, 0.0, 1e4])]).astype(dtype)
    tolerance = {'float32': 2e-6, 'bfloat16': 2**-8}[dtype]  # bfloat16: a single rounding
    exact = x.astype(jnp.float32)
    theirs = functools.partial(jax.nn.gelu, approximate=False)
    np.testing.assert_allclose(gelu(x).astype(jnp.float32), theirs(exact), rtol=tolerance, atol=2e-6)
    ours, expected = (jax.vmap(jax.grad(f)) for f in (gelu, theirs))
    assert ours(x).dtype == x.dtype
    np.testing.assert_allclose(ours(x).astype(jnp.float32), expected(exact), rtol=tolerance, atol=2e-6)


def test_invalid_input_is_refused_or_gives_nan(make_model, inputs):
    model, params = make_model()
    with pytest.raises(UserError, match='max_positions: found 32 for sequences of 40 tokens'):
        _apply(model, params, [np.zeros((1, 40), np.int32)] * 3 + [np.zeros((1, 2), np.int32)])
    ids = inputs[0].copy()
    ids[0, 3] = 300
    outputs = _apply(model, params, (ids, *inputs[1:]))
    assert np.isnan(outputs['mlm_logits'][0, :, :150]).all() and np.isfinite(outputs['mlm_logits'][1:]).all()
