"""Sequences that share a row of the encoder: each gets what it gets in a row of its own."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertjax.model.encoder import Embeddings
from bertjax.model.heads import BertForClassification
from bertjax.model.sharing import sharing

LENGTHS = np.array([5, 7, 0, 4, 16, 0, 0, 0, 1, 1, 1, 13, 0, 0, 0, 0])  # four in a row of 16


@pytest.fixture(scope='module')
def rows():
    rng = np.random.default_rng(0)
    mask = (np.arange(16) < LENGTHS[:, None]).astype(np.int32)
    segments = (np.arange(16) > LENGTHS[:, None] // 2).astype(np.int32) * mask
    return rng.integers(5, 150, mask.shape).astype(np.int32) * mask, segments, mask


@pytest.mark.parametrize('changes', [{}, {'scan_layers': False, 'attention': 'dot_product'}, {'causal': True}])
def test_states_are_those_of_rows_of_their_own(make_model, rows, changes):
    model, params = make_model(**changes)
    shapes = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, Embeddings) and context.method_name == '__call__':
            shapes.append(args[0].shape)
        return call(*args, **kwargs)

    def forward(params, rows):
        with nn.intercept_methods(note):
            return model.apply({'params': params}, *rows, method='encode')

    own = jax.jit(forward)(params, rows)
    with sharing(4):
        shared = jax.jit(lambda *x: forward(*x))(params, rows)
    assert set(shapes) == {(16, 16), (4, 16)}
    real = rows[2] > 0
    np.testing.assert_allclose(shared[0][real], own[0][real], atol=1e-5)
    np.testing.assert_allclose(shared[1][:, real], own[1][:, real], atol=1e-5)
    np.testing.assert_allclose(shared[2][LENGTHS > 0], own[2][LENGTHS > 0], atol=1e-5)


def test_a_head_that_wants_the_first_position_gets_it_of_each(small_config, make_params, rows):
    model = BertForClassification(small_config(scan_layers=False), outputs=3)
    params = make_params(model, *rows)
    forward = lambda params, rows: model.apply({'params': params}, *rows)['logits']  # noqa: E731
    own = jax.jit(forward)(params, rows)
    with sharing(4):
        shared = jax.jit(lambda *x: forward(*x))(params, rows)
    np.testing.assert_allclose(shared[LENGTHS > 0], own[LENGTHS > 0], atol=1e-5)
