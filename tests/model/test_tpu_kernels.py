"""Tests the choice of the TPU attention kernels, and compiles them."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import RATE, shapes, slice_of_tpus

from bertjax.errors import UserError
from bertjax.model.attention.select import IMPLEMENTATIONS, choose_attention
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import batch_sharding, mesh_context

__all__ = ['slice_of_tpus']


def test_unsupported_calls_give_a_reason():
    assert 'kernel for TPUs' in IMPLEMENTATIONS['fused_tpu'].supports(*shapes(), 0.1)
    with pytest.raises(UserError, match='kernel for TPUs'):
        choose_attention('fused_tpu', *shapes(), 0.1)
    assert choose_attention('auto', *shapes(), 0.1).name != 'fused_tpu'


def test_auto_on_a_tpu_chooses_fused_tpu_if_supported(slice_of_tpus):
    with mesh_context(slice_of_tpus('v5e:2x2')):
        assert choose_attention('auto', *shapes(heads=4), 0.1).name == 'fused_tpu'
        for wrong, reason in (
            ({'tokens': 96}, '96 tokens'), ({'tokens': 1024}, '1024 tokens'), ({'queries': 1}, 'not the first 1'),
            ({'heads': 3}, '3 heads cannot be split evenly over 2'), ({'heads': 2}, '2 heads of width 64'),
        ):  # fmt: skip
            assert reason in IMPLEMENTATIONS['fused_tpu'].supports(*shapes(**wrong), 0.1)
    with mesh_context(slice_of_tpus('v3:2x2')):
        assert 'TPU v3' in IMPLEMENTATIONS['fused_tpu'].supports(*shapes(heads=4), 0.1)


def test_auto_chooses_flash_tpu_for_long_sequences_without_dropout(slice_of_tpus):
    assert 'kernel for TPUs' in IMPLEMENTATIONS['flash_tpu'].supports(*shapes(1024), 0.0)
    with mesh_context(slice_of_tpus('v5e:2x2')):
        assert choose_attention('auto', *shapes(4096, heads=4), 0.0).name == 'flash_tpu'
        assert choose_attention('auto', *shapes(1024, heads=4), 0.0).name == 'blocks_tpu'
        assert choose_attention('auto', *shapes(512, heads=4), 0.0).name == 'fused_tpu'
        chosen = choose_attention('auto', *shapes(1024, heads=4), 0.1)
        assert chosen.name == 'dot_product' and chosen.refusals['flash_tpu'] == 'it does not support dropout'
        flash = IMPLEMENTATIONS['flash_tpu']
        assert '1000 tokens' in flash.supports(*shapes(1000), 0.0)
        assert 'heads of width 192' in flash.supports(*shapes(4096, heads=4, width=192), 0.0)
        assert 'not the first 1' in flash.supports(*shapes(1024, queries=1), 0.0)
        assert '3 heads cannot be split evenly over 2' in IMPLEMENTATIONS['flash_tpu'].supports(
            *shapes(1024, heads=3), 0.0
        )


def test_blocks_tpu_refuses_rows_that_do_not_fit_in_vmem(slice_of_tpus):
    """The compiler confirms these limits: 4,096 tokens do not fit on v4, nor heads of width 80 on v5e."""
    blocks, cases = IMPLEMENTATIONS['blocks_tpu'], (('v4:2x2x1', 3072, 4096, 64, 19), ('v5e:2x2', 5120, 8192, 80, 181))
    for name, fits, too_long, width, needed in cases:
        with mesh_context(slice_of_tpus(name)):
            for tokens, reason in ((fits, None), (too_long, f'{needed} MiB of VMEM, but TPU')):
                query, key, mask = shapes(tokens, heads=16, width=width)
                found = blocks.supports(query, key, mask.replace(window=128), 0.0)
                assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ('kernel', 'name'),
    [
        ('fused_tpu', 'v5e:2x2'),
        *(
            pytest.param(kernel, name, marks=pytest.mark.slow)
            for kernel in ('fused_tpu', 'flash_tpu')
            for name in ('v5e:2x2', 'v5p:2x2x1', 'v6e:2x2')
            if (kernel, name) != ('fused_tpu', 'v5e:2x2')
        ),
    ],
)
def test_the_kernel_compiles_for_a_tpu_with_rows_and_heads_split(slice_of_tpus, monkeypatch, kernel, name):
    monkeypatch.delenv('XLA_FLAGS', raising=False)  # libtpu does not know the flags of the tests, which are for CPUs.
    tokens, rate = (512, RATE) if kernel == 'fused_tpu' else (2048, 0.0)
    mesh = slice_of_tpus(name)
    rows = batch_sharding(mesh)
    query, key, mask = shapes(tokens, heads=16, sharding=rows)
    numbers = jax.ShapeDtypeStruct((8,), jnp.uint32, sharding=rows)

    def gradients(query, key, value, mask, numbers):
        options = {'dropout_rate': rate, 'dropout': Dropout(jnp.uint32(0), numbers)}
        attend = lambda *x: IMPLEMENTATIONS[kernel].attend(*x, mask, **options)  # noqa: E731
        return jax.grad(lambda *x: attend(*x).astype(jnp.float32).sum(), (0, 1, 2))(query, key, value)

    with mesh_context(mesh):
        compiled = jax.jit(gradients).lower(query, key, key, mask, numbers).compile()
    text = compiled.as_text()
    assert 'tpu_custom_call' in text and 'all-gather' not in text
    # Plain attention needs 4 bytes (float32) for each score of a chip's rows and heads, and 2 for the bfloat16 weight.
    size = 2 if kernel == 'fused_tpu' else 3
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 8 * tokens * tokens * size
