"""Fixtures: parameter trees of a small model, scanned and unrolled, boxed and unboxed."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params

DIMS = dict(vocab_size=200, num_layers=3, width=16, num_heads=2, mlp_dim=32, max_positions=16)


def boxed_params(**changes):
    """Returns shapes in `nn.Partitioned` boxes with axis names, as the optimizer gets them to create its state."""
    model = BertForPreTraining(BertConfig(**{**DIMS, **changes}))
    return jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))


@pytest.fixture(scope='session')
def scanned_boxed():
    return boxed_params(scan_layers=True)


@pytest.fixture(scope='session')
def unrolled_boxed():
    return boxed_params(scan_layers=False)


def values_of(boxed):
    """Returns unboxed random values. Biases are not zero either, so that all norms are positive."""
    rng = np.random.default_rng(1)
    shapes = jax.tree.map(lambda x: x.value, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return jax.tree.map(lambda x: rng.normal(scale=0.1, size=x.shape).astype(np.float32), shapes)


@pytest.fixture(scope='session')
def scanned(scanned_boxed):
    return values_of(scanned_boxed)


@pytest.fixture(scope='session')
def gated():
    """Returns parameters of a model with a gated MLP, whose gate and up are separate matrices, and without biases."""
    changes = {'mlp': 'geglu', 'projection_bias': False, 'norm_bias': False, 'pre_norm': True}
    return values_of(boxed_params(scan_layers=True, **changes))
