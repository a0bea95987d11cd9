"""Tests the TPU kernel for blocks of queries, interpreted and compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import by_float64, interpreted, output_and_gradients
from marks import mostly_slow

from bertjax.errors import UserError
from bertjax.model.attention.blocks_tpu_kernel import BlockOptions
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS, choose_attention
from bertjax.model.attention.tpu import BLOCK
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context
from bertjax.parallel.topology import topology_devices

__all__ = ['interpreted']

B, S = 2, 512
BLOCKS = IMPLEMENTATIONS['blocks_tpu']
# (heads, width, window, whether the rows are packed)
CASES = {
    'two heads in a register': (2, 64, 128, False),
    'packed': (2, 64, 128, True),
    'heads of 128, a wide window': (1, 128, 250, True),
    'a narrow window': (4, 32, 16, False),
    'no window': (2, 64, 0, True),
}


def mask_of(window, packed):
    mask = (np.arange(S) < np.array([[400], [S]])).astype(np.int32)
    ids = np.repeat([[1, 2, 3, 4]], [130, 30, 240, 112], axis=1).repeat(B, 0).astype(np.int32)
    return AttentionMask(jnp.asarray(mask), jnp.asarray(ids) if packed else None, window=window)


def visible_keys(mask):
    """Returns the keys that each query sees, bool [B, 1, S, S]."""
    distances = np.abs(np.arange(S)[:, None] - np.arange(S))
    visible = (distances <= (mask.window // 2 or S)) & (np.asarray(mask.key_mask)[:, None] > 0)
    if mask.sequence_ids is not None:
        ids = np.asarray(mask.sequence_ids)
        visible = visible & (ids[:, None] == ids[:, :, None])
    return visible[:, None]


@pytest.mark.parametrize('name', mostly_slow(CASES, 'packed', 'a narrow window'))
def test_output_and_gradients_equal_those_of_float64(interpreted, name):
    heads, width, window, packed = CASES[name]
    mask = mask_of(window, packed)
    arrays = np.random.default_rng(0).standard_normal((4, B, S, heads, width)).astype(np.float32)
    # A padding query may attend to no token at all. Its result is unused.
    arrays[3] *= np.asarray(mask.key_mask)[..., None, None]

    real = np.asarray(mask.key_mask) > 0
    results = output_and_gradients(BLOCKS, arrays, mask)
    for ours, expected in zip(results, by_float64(arrays, visible_keys(mask)), strict=True):
        np.testing.assert_allclose(ours[real], expected[real], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize('keys', range(256, 2049, 128))
def test_the_first_keys_have_the_alignment_that_the_kernel_promises(keys):
    options = BlockOptions(reach=64, keys=keys, group=2, width=64)
    first = options.first_key(np.arange(8192 // BLOCK), 8192)
    assert not (first % options.alignment(8192)).any()


def test_windows_with_too_many_keys_are_refused():
    x, ids = jax.ShapeDtypeStruct((1, 8192, 2, 64), jnp.bfloat16), jnp.ones((1, 8192), jnp.int32)
    assert 'a window of 4096, but it allows' in BLOCKS._refuse_shape(x, AttentionMask(ids, window=4096))
    assert BLOCKS._refuse_shape(x, AttentionMask(ids, window=1024)) is None


@pytest.mark.parametrize(
    ('topology', 'length'),
    [('v5e:2x2', 1024), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ('v5e:2x2', 8192), ('v5p:2x2x1', 1024), ('v5p:2x2x1', 8192), ('v6e:2x2', 8192)
    ))],
)  # fmt: skip
def test_the_kernel_compiles_for_a_tpu(topology, length, monkeypatch):
    pytest.importorskip('libtpu', reason="needs the extra 'tpu'")
    monkeypatch.delenv('XLA_FLAGS', raising=False)  # libtpu does not know the flags of the tests, which are for CPUs.
    mesh = make_mesh({'data': 4, 'fsdp': 1, 'tensor': 1}, topology_devices(topology))
    x = jax.ShapeDtypeStruct((4, length, 12, 64), jnp.bfloat16, sharding=batch_sharding(mesh))
    ids = jax.ShapeDtypeStruct((4, length), jnp.int32, sharding=batch_sharding(mesh))

    def gradient(query, key, value, mask_ids):
        mask = AttentionMask(mask_ids, mask_ids, window=128)
        assert choose_attention('auto', query, key, mask, 0.0).name == 'blocks_tpu'

        def loss(*x):
            return BLOCKS.attend(*x, mask, dropout_rate=0.0, dropout=None).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(query, key, value)

    with mesh_context(mesh):
        text = jax.jit(gradient).lower(x, x, x, ids).compile().as_text()
        assert 'block_attention_gradient' in text
        with pytest.raises(UserError, match='it does not support dropout'):
            choose_attention('blocks_tpu', x, x, AttentionMask(ids, window=128), 0.1)
        global_name = choose_attention('auto', x, x, AttentionMask(ids), 0.0).name
        assert global_name == ('blocks_tpu' if length == 1024 else 'flash_tpu')
