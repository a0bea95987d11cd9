"""Tests the model on a mesh: shardings, collectives, and equal losses."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec as P
from marks import SCAN

from bertjax.losses import pretraining_losses
from bertjax.model.bert import BertForPreTraining
from bertjax.model.stacking import init_params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, state_shardings

MESHES = {
    'data': {'data': 8, 'fsdp': 1, 'tensor': 1},
    'fsdp': {'data': 1, 'fsdp': 8, 'tensor': 1},
    'fsdp_tensor': {'data': 1, 'fsdp': 4, 'tensor': 2},
}
# The partition specs of a block, without the axis of scanned layers.
BLOCK = {
    **{f'attention/{name}/kernel': P('fsdp', 'tensor', None) for name in ('query', 'key', 'value')},
    **{f'attention/{name}/bias': P('tensor', None) for name in ('query', 'key', 'value')},
    'attention/output/kernel': P('tensor', None, 'fsdp'),
    'attention/output/bias': P(None),
    'mlp/up/kernel': P('fsdp', 'tensor'),
    'mlp/up/bias': P('tensor'),
    'mlp/down/kernel': P('tensor', 'fsdp'),
    'mlp/down/bias': P(None),
    **{f'{name}/{leaf}': P(None) for name in ('attention_norm', 'mlp_norm') for leaf in ('scale', 'bias')},
}
OTHERS = {
    'encoder/embeddings/token/embedding': P('tensor', 'fsdp'),
    'encoder/embeddings/position/embedding': P(None, 'fsdp'),
    'encoder/embeddings/segment/embedding': P(None, 'fsdp'),
    **{f'{name}/{leaf}': P(None) for name in ('encoder/embeddings/norm', 'mlm/norm') for leaf in ('scale', 'bias')},
    **{f'{name}/kernel': P('fsdp', None) for name in ('pooler', 'mlm/dense', 'nsp')},
    **{f'{name}/bias': P(None) for name in ('pooler', 'mlm/dense', 'nsp')},
    'mlm/bias': P('tensor'),
}


def _init(model):
    return lambda key: init_params(model, key)


@pytest.mark.slow
@SCAN
def test_every_parameter_has_the_expected_sharding(small_config, inputs, scan):
    model = BertForPreTraining(small_config(scan_layers=scan, num_layers=2))
    mesh = make_mesh(MESHES['fsdp_tensor'])
    with mesh_context(mesh):
        shardings = state_shardings(jax.eval_shape(_init(model), jax.random.key(0)), mesh)
        # Initializes under the mesh, as a run does. A name on the wrong dimension would raise an error.
        init = jax.jit(lambda key: nn.unbox(_init(model)(key)), out_shardings=shardings)
        params = init(jax.random.key(0))
    expected = dict(OTHERS)
    for name, spec in BLOCK.items():
        if scan:
            expected[f'encoder/layers/{name}'] = P(None, *spec)
        else:
            expected |= {f'encoder/layers_{i}/{name}': spec for i in range(2)}
    assert {name: sharding.spec for name, sharding in flatten_dict(shardings, sep='/').items()} == expected
    kernel = params['encoder']['layers']['mlp']['up']['kernel'][0] if scan else None
    for name, x in flatten_dict(params, sep='/').items():
        split = np.prod([{'fsdp': 4, 'tensor': 2, None: 1}[axis] for axis in expected[name]])
        assert x.addressable_shards[0].data.size * split == x.size, name
    assert kernel is None or kernel.shape == (32, 64)


# The slow cases test the axes one by one.
@pytest.mark.parametrize(
    'name', [name if name == 'fsdp_tensor' else pytest.param(name, marks=pytest.mark.slow) for name in MESHES]
)
def test_a_step_on_a_mesh_has_the_expected_collectives_and_the_same_loss(make_model, inputs, name):
    model, params = make_model(num_layers=2)
    # With 64 rows, activations are larger than weights, as in a real run.
    inputs = tuple(np.tile(x, (8, 1)) for x in inputs)
    mesh = make_mesh(MESHES[name])
    batch = {
        'masked_ids': np.tile(np.array([7, 8, 9], np.int32), (64, 1)),
        'masked_weights': np.ones((64, 3), np.float32),
        'nsp_labels': np.arange(64, dtype=np.int32) % 2,
        'nsp_weights': np.ones(64, np.float32),
    }

    def loss(params, inputs, batch):
        losses = pretraining_losses(model.apply({'params': params}, *inputs), batch)
        return sum(losses[key][0] / losses[key][1] for key in ('mlm_loss', 'nsp_loss'))

    one_device = float(jax.jit(loss)(params, inputs, batch))
    with mesh_context(mesh):
        shardings = state_shardings(jax.eval_shape(_init(model), jax.random.key(0)), mesh)
        rows = batch_sharding(mesh)
        step = jax.jit(jax.value_and_grad(loss), in_shardings=(shardings, rows, rows), out_shardings=(None, shardings))
        arguments = jax.device_put((params, inputs, batch), (shardings, rows, rows))
        compiled = step.lower(*arguments).compile()
        value, grads = compiled(*arguments)
    assert float(value) == pytest.approx(one_device, rel=1e-5)
    text = compiled.as_text()
    gathers, reductions = text.count('all-gather('), text.count('all-reduce(')
    if name == 'data':  # Replicated weights need only the sum of gradients.
        assert reductions > 0 and gathers == 0
    else:  # Weights are gathered for a product.
        assert gathers > 0 and reductions + text.count('reduce-scatter(') > 0
    # Activations are split by rows, so no device has all hidden states or all logits.
    rows = {'data': 8, 'fsdp': 8, 'fsdp_tensor': 16}[name]
    assert f'f32[{rows},16,32]' in text and 'f32[64,16,32]' not in text and 'f32[64,3,256]' not in text
    kernel = grads['encoder']['layers']['mlp']['up']['kernel']
    assert kernel.sharding.spec == shardings['encoder']['layers']['mlp']['up']['kernel'].spec
