"""Cases, a float64 reference, shapes and devices for the tests of the attention kernels."""

import dataclasses
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words, drop_weights
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.topology import topology_devices

B, S, H, K = 2, 128, 2, 64
RATE = 0.1


@dataclasses.dataclass
class Case:
    """A mask, a dropout rate and sizes of heads."""

    packed: bool = False
    causal: bool = False
    rate: float = 0.0
    heads: int = H
    width: int = K


CASES = {
    'plain': Case(),
    'dropout': Case(rate=RATE),
    'packed': Case(packed=True, rate=RATE),
    'left to right': Case(causal=True, rate=RATE),
    'heads of 32': Case(heads=4, width=32, rate=RATE),
    'heads of 128': Case(heads=1, width=128, rate=RATE),
}


def mask_of(case):
    tokens = np.array([110, S])
    mask = (np.arange(S) < tokens[:, None]).astype(np.int32)
    sequences = np.repeat([[0, 1, 2, 3]], [30, 30, 40, 28], axis=1).repeat(B, 0).astype(np.int32)
    return AttentionMask(jnp.asarray(mask), jnp.asarray(sequences) if case.packed else None, case.causal)


def arrays_of(case, dtype=np.float32):
    """Returns query, key, value and the cotangent of the output."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((B, S, case.heads, case.width)).astype(dtype) for _ in range(4)]


def dropout_of():
    return Dropout(jnp.uint32(7), jnp.asarray([3, 2**31], jnp.uint32))


def output_and_gradients(implementation, arrays, mask, rate=0.0):
    """Returns [output, gradients of query, key, value]; the fourth array is the cotangent of the output."""

    @jax.jit
    def compute(query, key, value, cotangent):
        attend = lambda *x: implementation.attend(*x, mask, dropout_rate=rate, dropout=dropout_of())  # noqa: E731
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(cotangent)

    return [np.asarray(x, np.float64) for x in compute(*arrays)]


def by_float64(arrays, visible, rate=0.0):
    """Returns the same from the formulas in float64; `visible` is bool [B, 1, Q or 1, S]."""
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in arrays)
    rows, length, heads, width = query.shape
    kept = 1.0
    if rate:
        words = attention_words(dropout_of(), heads)
        kept = np.asarray(drop_weights(jnp.ones((rows, heads, length, length)), rate, words)) > 0
    scale = kept / (1 - rate)
    scores = np.einsum('BQHK,BSHK->BHQS', query, key) / np.sqrt(width) + np.where(visible, 0, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum('BHQS,BSHK->BQHK', weights * scale, value)
    d_value = np.einsum('BHQS,BQHK->BSHK', weights * scale, cotangent)
    d_weights = np.einsum('BQHK,BSHK->BHQS', cotangent, value) * scale
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)) / np.sqrt(width)
    d_query = np.einsum('BHQS,BSHK->BQHK', d_scores, key)
    d_key = np.einsum('BHQS,BQHK->BSHK', d_scores, query)
    return [output, d_query, d_key, d_value]


def shapes(tokens=S, heads=H, width=K, queries=None, sharding=None):
    """Returns the shapes of query and key, and a mask."""
    shape = lambda n: jax.ShapeDtypeStruct((8, n, heads, width), jnp.bfloat16, sharding=sharding)  # noqa: E731
    mask = AttentionMask(jax.ShapeDtypeStruct((8, tokens), jnp.int32, sharding=sharding))
    return shape(queries or tokens), shape(tokens), mask


@pytest.fixture
def interpreted(monkeypatch):
    """Lets JAX interpret Pallas kernels, on any device."""
    monkeypatch.setattr(pl, 'pallas_call', functools.partial(pl.pallas_call, interpret=True))


@pytest.fixture(scope='module')
def slice_of_tpus():
    """slice_of_tpus(name) -> a mesh of this slice, whose tensor axis has two chips."""
    pytest.importorskip('libtpu', reason="needs the extra 'tpu'")
    return lambda name: make_mesh({'data': -1, 'fsdp': 1, 'tensor': 2}, topology_devices(name))


@pytest.fixture(scope='session')
def hopper():
    """hopper(count) -> abstract devices of `count` H200s in one machine; the extra 'cuda' compiles for them."""
    plugins = importlib.util.find_spec('jax_plugins')  # `find_spec` of a submodule fails without its parent package.
    if not plugins or not any(importlib.util.find_spec(f'jax_plugins.xla_cuda{version}') for version in (12, 13)):
        pytest.skip("the compiler for NVIDIA GPUs is not installed: it is in the extra 'cuda'")
    return lambda count: topology_devices(f'h200:{count}')
