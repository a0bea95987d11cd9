"""Sequences at fixed places of packed rows: each gets, and each parameter learns, what it does in rows of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.strata import choose_places
from bertjax.model.dropout import Dropout
from bertjax.model.groups import Groups
from bertjax.model.heads import BertForClassification, BertForTokens
from bertjax.model.sharing import grouped

LENGTHS = np.array([5, 24, 3, 16, 8, 20, 4, 12])


@pytest.fixture(scope='module')
def rows():
    rng = np.random.default_rng(0)
    mask = (np.arange(24) < LENGTHS[:, None]).astype(np.int32)
    segments = (np.arange(24) > LENGTHS[:, None] // 2).astype(np.int32) * mask
    return rng.integers(5, 150, mask.shape).astype(np.int32) * mask, segments, mask


def groups(*, shared):
    places = choose_places(
        LENGTHS,
        1,
        cost=lambda length: length if shared else length + length**3,
        another=0,
        most=1 if shared else 3,
        longest=512,
        shared=shared,
    )
    made = Groups(places.sizes, places.slots)
    assert len(made.sizes) == (1 if shared else 3) and all(made.alone()) != shared
    assert made.positions < len(LENGTHS) * 24
    return made


def gradients(model, params, rows, own):
    """Loss, outputs without padding, and gradients, with dropout."""
    real = rows[2] > 0
    dropout = Dropout(jnp.uint32(3), 7 + jnp.arange(len(real), dtype=jnp.uint32))

    def loss(params):
        with grouped(own):
            outputs = model.apply({'params': params}, *rows, dropout=dropout)
        whole = [x if x.shape[:2] != real.shape else _where(real, x) for x in outputs.values()]
        return sum(jnp.sin(x).sum() for x in whole), whole

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


def _where(real, x):
    return jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, 0)


def assert_same(found, expected):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'head, changes, shared',
    [
        (BertForClassification, {'scan_layers': False, 'remat': 'elementwise'}, False),
        (BertForClassification, {'causal': True}, True),
        (BertForTokens, {'pre_norm': True}, True),
    ],
)
def test_losses_and_gradients_are_those_of_rows_of_their_own(small_config, make_params, rows, head, changes, shared):
    config = small_config(dropout=0.2, attention_dropout=0.2, num_layers=2, **changes)
    model = head(config, outputs=2)
    params = make_params(model, *rows)
    assert_same(
        gradients(model, params, rows, groups(shared=shared)),
        gradients(model, params, rows, None),
    )


@pytest.mark.slow
def test_long_rows_by_heads(small_config, make_params):
    """More than 256 positions, of which a CPU computes one head after the other."""
    rng, lengths = np.random.default_rng(0), np.array([200, 60, 130, 110])
    mask = (np.arange(200) < lengths[:, None]).astype(np.int32)
    rows = rng.integers(5, 150, mask.shape).astype(np.int32) * mask, 0 * mask, mask
    config = small_config(dropout=0.2, attention_dropout=0.2, num_layers=2, scan_layers=False, max_positions=512)
    own = Groups(((2, 260),), ((0, 200), (200, 60), (260, 130), (390, 110)))
    for head in (BertForClassification, BertForTokens):
        model = head(config, outputs=2)
        params = make_params(model, *rows)
        assert_same(gradients(model, params, rows, own), gradients(model, params, rows, None))
