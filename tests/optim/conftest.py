"""Parameter trees of a real, small model in each of its forms."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params

DIMS = dict(vocab_size=200, num_layers=3, width=16, num_heads=2, mlp_dim=32, max_positions=16)


def boxed_params(**changes):
    """Parameters with the boxes of Linen's axis names, as the optimiser sees them when its state is made."""
    model = BertForPreTraining(BertConfig(**{**DIMS, **changes}))
    ids = jnp.zeros((1, 8), jnp.int32)
    return init_params(model, jax.random.key(0), ids, ids, ids, jnp.zeros((1, 2), jnp.int32))


@pytest.fixture(scope='session')
def scanned_boxed():
    return boxed_params(scan_layers=True)


@pytest.fixture(scope='session')
def unrolled_boxed():
    return boxed_params(scan_layers=False)


@pytest.fixture(scope='session')
def scanned(scanned_boxed):
    """Values that are none of them zero, so that biases have norms too."""
    leaves, treedef = jax.tree.flatten(nn.unbox(scanned_boxed))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.1 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, noisy)
