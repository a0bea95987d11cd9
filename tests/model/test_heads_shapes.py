"""Task heads: shapes, what they look at, what a pre-trained tree gives them."""

import jax
import numpy as np
import pytest

from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTokens

CASES = {
    'classification': (BertForClassification, {'outputs': 3}),
    'multiple_choice': (BertForMultipleChoice, {}),
    'spans': (BertForSpans, {}),
    'tokens': (BertForTokens, {'outputs': 5}),
}


def _inputs(case, inputs):
    return tuple(x.reshape(4, 2, 16) if case == 'multiple_choice' else x for x in inputs[:3])


@pytest.mark.parametrize('units', [0, 10], ids=['plain', 'bilstm'])
@pytest.mark.parametrize('case', CASES)
def test_padding_does_not_matter_and_a_pretrained_tree_fits(case, units, small_config, inputs, make_params, make_model):
    head, options = CASES[case]
    model = head(small_config(dropout=0.1), **options, bilstm_units=units)
    ids, segments, mask = _inputs(case, inputs)
    params = make_params(model, ids, segments, mask)
    _, pretrained = make_model()
    shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)  # noqa: E731
    assert shapes(params['encoder']) == shapes(pretrained['encoder'])
    assert ('bilstm' in params) == bool(units)
    if 'pooler' in params and not units:
        assert shapes(params['pooler']) == shapes(pretrained['pooler'])
    apply = jax.jit(lambda p, i: model.apply({'params': p}, i, segments, mask, deterministic=True))
    one, two = (apply(params, np.where(mask > 0, ids, other).astype(np.int32)) for other in (0, 99))
    expected = {'classification': (8, 3), 'multiple_choice': (4, 2), 'spans': (2, 8, 16), 'tokens': (8, 16, 5)}[case]
    one, two = np.asarray(one), np.asarray(two)
    assert one.shape == expected and one.dtype == np.float32
    read = {'spans': np.stack([mask > 0] * 2), 'tokens': mask > 0}.get(case)
    if read is None:
        read = (mask.sum(-1) > 0).reshape(one.shape[: mask.ndim - 1])
    np.testing.assert_array_equal(one[read], two[read])


@pytest.mark.parametrize('causal, units', [(False, 0), (True, 0), (True, 10)])
def test_classification_sees_the_last_word(small_config, inputs, make_params, causal, units):
    """A left-to-right encoder's [CLS] sees only itself: the head has to look elsewhere."""
    model = BertForClassification(small_config(causal=causal), 3, bilstm_units=units)
    params = make_params(model, *inputs[:3])
    ids, segments, mask = (x[1:2] for x in inputs[:3])  # 12 tokens
    other = ids.copy()
    other[0, 11] = (ids[0, 11] + 1) % 150
    one, two = (model.apply({'params': params}, x, segments, mask, deterministic=True) for x in (ids, other))
    assert not np.array_equal(one, two)


def test_head_dropout_needs_its_key_and_changes_the_logits(small_config, inputs, make_params):
    model = BertForTokens(small_config(dropout=0.3), 4, bilstm_units=6)
    params = make_params(model, *inputs[:3])
    run = lambda key: model.apply({'params': params}, *inputs[:3], deterministic=False, rngs={'dropout': key})  # noqa: E731
    one, same, other = (np.asarray(run(jax.random.key(seed))) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
