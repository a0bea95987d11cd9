"""Tests JAX's flash attention kernel, interpreted and compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from test_fused_tpu import Case, arrays_of, by_float64, mask_of, shapes, slice_of_tpus

from bertjax.model.attention import flash_tpu
from bertjax.model.attention.select import choose_attention
from bertjax.parallel.partition import batch_sharding, mesh_context

CASES = {'plain': Case(), 'packed': Case(packed=True), 'left to right': Case(causal=True)}
__all__ = ['slice_of_tpus']


@pytest.mark.parametrize('name', [pytest.param(name, marks=[pytest.mark.slow] * (name != 'packed')) for name in CASES])
def test_output_and_gradients_equal_those_of_float64(name):
    """Only tokens are compared. In this kernel, padding attends to padding, and the results are unused."""
    case = CASES[name]
    mask = mask_of(case)
    tokens = np.asarray(mask.key_mask)[:, :, None, None]
    query, key, value, cotangent = arrays_of(case)
    arrays = (query, key, value, cotangent * tokens)

    def attend(query, key, value):
        return flash_tpu.attend(query, key, value, mask, dropout_rate=0.0, dropout=None)

    with pltpu.force_tpu_interpret_mode():
        output, pull = jax.vjp(attend, *map(jnp.asarray, arrays[:3]))
        ours = [output * tokens, *pull(jnp.asarray(arrays[3]))]
    expected, *gradients = by_float64(case, arrays)
    for actual, exact in zip(ours, [expected * tokens, *gradients], strict=True):
        np.testing.assert_allclose(np.asarray(actual, np.float64), exact, atol=2e-6, rtol=1e-5)


def test_auto_chooses_flash_tpu_for_long_sequences_without_dropout(slice_of_tpus):
    assert 'kernel for TPUs' in flash_tpu.supports(*shapes(1024), 0.0)
    with mesh_context(slice_of_tpus('v5e:2x2')):
        assert choose_attention('auto', *shapes(4096, heads=4), 0.0).name == 'flash_tpu'
        assert choose_attention('auto', *shapes(1024, heads=4), 0.0).name == 'blocks_tpu'
        assert choose_attention('auto', *shapes(512, heads=4), 0.0).name == 'fused_tpu'
        chosen = choose_attention('auto', *shapes(1024, heads=4), 0.1)
        assert chosen.name == 'dot_product' and chosen.refusals['flash_tpu'] == 'it does not support dropout'
        assert '1000 tokens' in flash_tpu.supports(*shapes(1000), 0.0)
        assert 'not the first 1' in flash_tpu.supports(*shapes(1024, queries=1), 0.0)
        assert '3 heads cannot be split evenly over 2' in flash_tpu.supports(*shapes(1024, heads=3), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'])
def test_the_kernel_compiles_for_a_tpu_with_rows_and_heads_split(slice_of_tpus, monkeypatch, name):
    monkeypatch.delenv('XLA_FLAGS', raising=False)  # libtpu does not know the flags of the tests, which are for CPUs.
    mesh = slice_of_tpus(name)
    query, key, mask = shapes(2048, heads=16, sharding=batch_sharding(mesh))

    def gradients(query, key, value, mask):
        attend = lambda *x: flash_tpu.attend(*x, mask, dropout_rate=0.0, dropout=None)  # noqa: E731
        return jax.grad(lambda *x: attend(*x).astype(jnp.float32).sum(), (0, 1, 2))(query, key, value)

    with mesh_context(mesh):
        compiled = jax.jit(gradients).lower(query, key, key, mask).compile()
    text = compiled.as_text()
    assert 'tpu_custom_call' in text and 'all-gather' not in text
    # Plain attention would need this for the scores (float32) and weights (bfloat16) of a chip.
    plain_bytes = 4 * 8 * 2048 * 2048 * (4 + 2)
    assert compiled.memory_analysis().temp_size_in_bytes < plain_bytes / 2
