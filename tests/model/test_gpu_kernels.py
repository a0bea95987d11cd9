"""Tests the choice of the GPU attention kernels, and compiles them."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import RATE, hopper, shapes

from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS, choose_attention
from bertjax.model.dropout import Dropout
from bertjax.parallel import partition
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context

__all__ = ['hopper']


@contextlib.contextmanager
def gpus(capability='9.0', data=1, tensor=1):
    """Sets a fake mesh of GPUs, for functions that only read its properties."""
    device = types.SimpleNamespace(platform='gpu', compute_capability=capability)
    mesh = types.SimpleNamespace(
        devices=np.array([device], object), shape={'data': data, 'fsdp': 1, 'tensor': tensor}, size=data * tensor
    )
    token = partition._MESH.set(mesh)
    try:
        yield
    finally:
        partition._MESH.reset(token)


def test_auto_on_a_gpu_chooses_the_supported_kernel():
    with gpus():
        assert choose_attention('auto', *shapes(512), 0.0).name == 'cudnn'
        training = choose_attention('auto', *shapes(512), 0.1)
        assert training.name == 'fused_gpu' and dict(training.refusals) == {'cudnn': 'it does not support dropout'}
        query, key, mask = shapes(512)
        packed = mask.replace(sequence_ids=mask.key_mask)
        choice = choose_attention('auto', query, key, packed, 0.0)
        assert choice.refusals == {'cudnn': 'it does not support packed rows'}
        for wrong, name in (
            ({'tokens': 100}, 'cudnn'), ({'width': 48}, 'cudnn'), ({'width': 20}, 'dot_product'),
            ({'queries': 1}, 'dot_product'),
        ):  # fmt: skip
            assert choose_attention('auto', *shapes(**wrong), 0.0).name == name
        assert '100 tokens' in IMPLEMENTATIONS['fused_gpu'].supports(*shapes(100), 0.1)
        assert 'width 48' in IMPLEMENTATIONS['fused_gpu'].supports(*shapes(width=48), 0.1)
        query, key, mask = shapes()
        with pytest.raises(UserError, match=r'config\.model\.attention: .*computes in bfloat16, not float32'):
            choose_attention('cudnn', query.update(dtype=jnp.float32), key, mask, 0.0)
    with gpus('7.5'):
        chosen = choose_attention('auto', *shapes(), 0.0)
        assert chosen.name == 'dot_product' and '7.5, but it needs at least 8.0' in chosen.refusals['fused_gpu']
    with gpus(data=3):
        assert '8 rows cannot be split evenly over 3' in IMPLEMENTATIONS['cudnn'].supports(*shapes(), 0.0)
    with gpus(tensor=4):
        assert '2 heads cannot be split evenly over 4' in IMPLEMENTATIONS['fused_gpu'].supports(*shapes(), 0.1)
    with pytest.raises(UserError, match='it is a kernel for GPUs'):
        choose_attention('fused_gpu', *shapes(), 0.1)


def gradients_of(attend, packed=False):
    """Returns a function of query, key, value, mask, sequences and example numbers."""

    def gradients(query, key, value, mask, sequences, numbers):
        mask, dropout = AttentionMask(mask, sequences if packed else None), Dropout(jnp.uint32(0), numbers)
        function = lambda *x: attend(*x, mask, dropout=dropout).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(function, (0, 1, 2))(query, key, value)

    return gradients


def inputs_of(tokens, heads=16, width=64, sharding=None):
    query, key, mask = shapes(tokens, heads=heads, width=width, sharding=sharding)
    numbers = jax.ShapeDtypeStruct((8,), jnp.uint32, sharding=sharding)
    return query, key, key, mask.key_mask, mask.key_mask, numbers


def fused(*inputs, dropout):
    return IMPLEMENTATIONS['fused_gpu'].attend(*inputs, dropout_rate=RATE, dropout=dropout)


def by_cudnn(*inputs, dropout):
    return IMPLEMENTATIONS['cudnn'].attend(*inputs, dropout_rate=0.0, dropout=None)


def test_cudnn_gets_a_padding_mask(monkeypatch):
    """The test lowers for CUDA without a GPU. It patches the version of cuDNN, because the library is not installed."""
    stablehlo = pytest.importorskip('jax._src.cudnn.fused_attention_stablehlo', reason='private to jax')
    monkeypatch.setattr(stablehlo, 'check_cudnn_version', lambda: 91000)
    lowered = jax.jit(gradients_of(by_cudnn)).trace(*inputs_of(512)).lower(lowering_platforms=('cuda',))
    text = lowered.as_text()
    assert text.count('custom_call @__cudnn$fmhaSoftmax(') == 1 and '@__cudnn$fmhaSoftmaxBackward(' in text
    assert '"mask_type": "PADDING"' in text.replace('\\22', '"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('tokens', 'width', 'packed'), [(128, 64, False), (512, 64, True), (64, 32, False), (256, 128, True)]
)
def test_the_kernels_compile_for_a_hopper_gpu_with_rows_and_heads_split(hopper, tokens, width, packed):
    mesh = make_mesh({'data': 2, 'fsdp': 1, 'tensor': 2}, hopper(4))
    inputs = inputs_of(tokens, width=width, sharding=batch_sharding(mesh))
    with mesh_context(mesh):
        assert choose_attention('auto', inputs[0], inputs[1], AttentionMask(inputs[3]), RATE).name == 'fused_gpu'
        compiled = jax.jit(gradients_of(fused, packed)).lower(*inputs).compile()
    text = compiled.as_text()
    assert text.count('__gpu$xla.gpu.triton') == 3 and 'all-gather' not in text
    assert f'{tokens},{tokens}]' not in text  # The scores are not in memory.
