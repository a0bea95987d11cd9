"""Fixtures: a small model that compiles in a second, and a batch for it."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params


@pytest.fixture(scope='session')
def small_config():
    """small_config(**changes) -> BertConfig without dropout."""

    def make(**changes):
        fields = dict(vocab_size=150, num_layers=3, width=32, num_heads=4, mlp_dim=64, max_positions=32)
        return BertConfig(**{**fields, 'dropout': 0.0, 'attention_dropout': 0.0, **changes})

    return make


@pytest.fixture(scope='session')
def inputs():
    """Returns input_ids, segment_ids, attention_mask [8, 16] and masked_positions [8, 3]; row 7 is padding only."""
    rng = np.random.default_rng(0)
    mask = (np.arange(16) < np.array([16, 12, 9, 5, 16, 3, 2, 0])[:, None]).astype(np.int32)
    ids = rng.integers(5, 150, mask.shape).astype(np.int32) * mask
    segments = (np.arange(16) > 6).astype(np.int32) * mask
    return ids, segments, mask, np.tile(np.array([1, 2, 0], np.int32), (8, 1))


@pytest.fixture(scope='session')
def make_params():
    """make_params(model) -> initial parameters, unboxed from their partitioning metadata."""

    @functools.cache
    def draw(model):
        init = lambda key: nn.unbox(init_params(model, key))  # noqa: E731
        quick = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
        return jax.jit(init, compiler_options=quick)(jax.random.key(0))

    return draw


@pytest.fixture(scope='session')
def make_model(small_config, inputs, make_params):
    """make_model(**config changes) -> (BertForPreTraining, its initial parameters)."""

    def make(**changes):
        model = BertForPreTraining(small_config(**changes))
        return model, make_params(model)

    return make
