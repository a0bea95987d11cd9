"""Tests the TPU attention kernel, interpreted and compiled."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.model.attention import dot_product, fused_tpu
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import choose_attention
from bertjax.model.dropout import Dropout, drop_attention
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context
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
    rng = np.random.default_rng(0)
    return [rng.standard_normal((B, S, case.heads, case.width)).astype(dtype) for _ in range(4)]


def dropout_of():
    return Dropout(jnp.uint32(7), jnp.asarray([3, 2**31], jnp.uint32))


def by_kernel(case, arrays):
    """Returns [output, gradients of query, key, value]; the fourth array is the cotangent of the output."""
    mask, dropout = mask_of(case), dropout_of()

    def attend(query, key, value):
        options = {'dropout_rate': case.rate, 'dropout': dropout, 'interpret': True}
        return fused_tpu.attend(query, key, value, mask, **options)

    @jax.jit
    def output_and_gradients(query, key, value, cotangent):
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(cotangent)

    return [np.asarray(x, np.float64) for x in output_and_gradients(*arrays)]


def by_float64(case, arrays):
    """Returns the same from the formulas in float64."""
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in arrays)
    shape = (B, case.heads, S, S)
    not_dropped = np.asarray(drop_attention(jnp.ones(shape), case.rate, dropout_of())) > 0
    scale = not_dropped / (1 - case.rate)
    visible = np.asarray(mask_of(case).visible(S))
    scores = np.einsum('BQHK,BSHK->BHQS', query, key) / np.sqrt(case.width) + np.where(visible, 0, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum('BHQS,BSHK->BQHK', weights * scale, value)
    d_value = np.einsum('BHQS,BQHK->BSHK', weights * scale, cotangent)
    d_weights = np.einsum('BQHK,BSHK->BHQS', cotangent, value) * scale
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True)) / np.sqrt(case.width)
    d_query = np.einsum('BHQS,BSHK->BQHK', d_scores, key)
    d_key = np.einsum('BHQS,BQHK->BSHK', d_scores, query)
    return [output, d_query, d_key, d_value]


@pytest.mark.parametrize('name', CASES)
def test_output_and_gradients_equal_those_of_float64(name):
    case = CASES[name]
    arrays = arrays_of(case)
    for ours, expected in zip(by_kernel(case, arrays), by_float64(case, arrays), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6, rtol=1e-5)


def test_bfloat16_is_as_accurate_as_in_dot_product():
    case = CASES['dropout']
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in arrays_of(case)]
    expected = by_float64(case, arrays)
    mask, dropout = mask_of(case), dropout_of()

    @jax.jit
    def plain(query, key, value, cotangent):
        attend = lambda *x: dot_product.attend(*x, mask, dropout_rate=RATE, dropout=dropout)  # noqa: E731
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(cotangent)

    for ours, theirs, exact in zip(by_kernel(case, arrays), plain(*arrays), expected, strict=True):
        our_error, their_error = (np.abs(np.asarray(x, np.float64) - exact).max() for x in (ours, theirs))
        assert our_error < 1.1 * their_error


def test_the_kernel_drops_the_same_weights_as_dot_product():
    """If the values are unit vectors, the output is the matrix of attention weights."""
    case = Case(heads=1, width=S, rate=RATE)
    query, key, *_ = arrays_of(case)
    value = np.broadcast_to(np.eye(S, dtype=np.float32)[None, :, None], query.shape)
    mask = AttentionMask(jnp.ones((B, S), jnp.int32))
    options = {'dropout_rate': RATE, 'dropout': dropout_of()}
    ours = fused_tpu.attend(query, key, value, mask, **options, interpret=True)
    theirs = dot_product.attend(jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), mask, **options)
    np.testing.assert_array_equal(np.asarray(ours) == 0, np.asarray(theirs) == 0)
    assert 0.09 < (np.asarray(ours) == 0).mean() < 0.11


def shapes(tokens=S, heads=H, width=K, queries=None, sharding=None):
    shape = lambda n: jax.ShapeDtypeStruct((8, n, heads, width), jnp.bfloat16, sharding=sharding)  # noqa: E731
    mask = AttentionMask(jax.ShapeDtypeStruct((8, tokens), jnp.int32, sharding=sharding))
    return shape(queries or tokens), shape(tokens), mask


def test_unsupported_calls_give_a_reason():
    assert 'kernel for TPUs' in fused_tpu.supports(*shapes(), 0.1)
    with pytest.raises(UserError, match='kernel for TPUs'):
        choose_attention('fused_tpu', *shapes(), 0.1)
    assert choose_attention('auto', *shapes(), 0.1).name != 'fused_tpu'


@pytest.fixture(scope='module')
def slice_of_tpus():
    pytest.importorskip('libtpu', reason="needs the extra 'tpu'")
    return lambda name: make_mesh({'data': -1, 'fsdp': 1, 'tensor': 2}, topology_devices(name))


def test_auto_on_a_tpu_chooses_fused_tpu_if_supported(slice_of_tpus):
    with mesh_context(slice_of_tpus('v5e:2x2')):
        assert choose_attention('auto', *shapes(heads=4), 0.1).name == 'fused_tpu'
        for wrong, reason in (
            ({'tokens': 96}, '96 tokens'), ({'tokens': 1024}, '1024 tokens'), ({'queries': 1}, 'not the first 1'),
            ({'heads': 3}, '3 heads of width 64'), ({'heads': 2}, '2 heads of width 64'),
        ):  # fmt: skip
            assert reason in fused_tpu.supports(*shapes(**wrong), 0.1)
    with mesh_context(slice_of_tpus('v3:2x2')):
        assert 'TPU v3' in fused_tpu.supports(*shapes(heads=4), 0.1)


@pytest.mark.parametrize(
    ('name', 'tokens'),
    [('v5e:2x2', 512), *(pytest.param(name, 512, marks=pytest.mark.slow) for name in ('v5p:2x2x1', 'v6e:2x2'))],
)
def test_the_kernel_compiles_for_a_tpu_with_rows_and_heads_split(slice_of_tpus, monkeypatch, name, tokens):
    monkeypatch.delenv('XLA_FLAGS', raising=False)  # libtpu does not know the flags of the tests, which are for CPUs.
    mesh = slice_of_tpus(name)
    rows = batch_sharding(mesh)
    query, key, mask = shapes(tokens, heads=16, sharding=rows)
    numbers = jax.ShapeDtypeStruct((8,), jnp.uint32, sharding=rows)

    def gradients(query, key, value, mask, numbers):
        dropout = Dropout(jnp.uint32(0), numbers)
        attend = lambda *x: fused_tpu.attend(*x, mask, dropout_rate=RATE, dropout=dropout)  # noqa: E731
        return jax.grad(lambda *x: attend(*x).astype(jnp.float32).sum(), (0, 1, 2))(query, key, value)

    with mesh_context(mesh):
        compiled = jax.jit(gradients).lower(query, key, key, mask, numbers).compile()
    text = compiled.as_text()
    assert 'tpu_custom_call' in text and 'all-gather' not in text
    scores = 4 * 8 * tokens * tokens * 2  # Bytes of the scores of a chip's rows and heads in bfloat16.
    assert compiled.memory_analysis().temp_size_in_bytes < scores
