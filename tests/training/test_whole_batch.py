"""Losses over a whole batch have the same gradients with microbatches, on meshes and on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from train_fakes import setup_of

from bertjax.data.loader import global_arrays
from bertjax.data.strata import choose_layout
from bertjax.model.config import BertConfig
from bertjax.model.row_packing import PackedLayout
from bertjax.parallel import zero1
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.tasks.embedding.head import BertForEmbedding
from bertjax.tasks.embedding.losses import build_objective
from bertjax.training.setup import Setup
from bertjax.training.state import put_like
from bertjax.training.step import make_gradients
from bertjax.training.whole_batch import whole_batch_gradients

B, C, S = 32, 3, 8
MODEL = BertConfig(vocab_size=60, num_layers=2, width=32, num_heads=4, mlp_dim=64, max_positions=S, dropout=0.1)


def make_batch():
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, S + 1, (B, C))
    lengths[5, 2] = 0  # a missing negative
    mask = (np.arange(S) < lengths[..., None]).astype(np.int32)
    ids = draw.integers(5, 60, (B, C, S)).astype(np.int32) * mask
    text_ids = (np.arange(B * C, dtype=np.int32).reshape(B, C) + 1) * (lengths > 0)
    text_ids[9, 1] = text_ids[0, 1]  # a positive that a row on another device also has
    text_ids[5, 0] = text_ids[0, 0]  # an anchor that a row on another device also has
    weights = np.ones(B, np.float32)
    weights[-1], text_ids[-1] = 0, 0
    batch = {'input_ids': ids, 'segment_ids': np.zeros_like(ids), 'attention_mask': mask}
    return {**batch, 'text_ids': text_ids.astype(np.int32), 'weights': weights, 'labels': draw.random(B, np.float32)}


@functools.cache
def initial_params():
    """Returns parameters on the host, which all cases share."""
    setup = setup_of(BertForEmbedding(MODEL), build_objective('info_nce'), optax.identity())
    return jax.device_get(setup.create(0).params)


def gradients(axes, parts=1, sharded='off', loss='info_nce', layout=None, pool='mean', **options):
    """Computes the loss, its sums and the gradients on a mesh; returns them on the host."""
    count = int(np.prod(list(axes.values())))
    mesh = make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1, **axes}, jax.devices()[:count])
    batch = make_batch()
    objective = build_objective(loss, **options)
    setup = Setup(BertForEmbedding(MODEL, pool=pool), objective, optax.identity(), mesh, zero1=sharded)
    compute = make_gradients(setup, parts, layout)
    assert (setup.exchange is not None) == (sharded == 'on')
    arrays, fresh = global_arrays(batch, batch_sharding(mesh), B), initial_params()
    with mesh_context(mesh):
        params = put_like(fresh, setup.state.params)
        numbers = jax.device_put((np.uint32(0), np.uint32(7)), replicated(mesh))  # the first example, and the seed
        results = jax.jit(compute)(params, arrays, *numbers)
    return jax.device_get(results)


def check(results, expected, tolerance):
    np.testing.assert_allclose(results.loss, expected.loss, rtol=tolerance)
    assert results.sums['loss'][1] == expected.sums['loss'][1]
    np.testing.assert_allclose(results.sums['loss'][0], expected.sums['loss'][0], rtol=tolerance)
    grads = [jax.tree.leaves(one.grads) for one in (results, expected)]
    largest = max(np.abs(x).max() for x in grads[1])
    for x, y in zip(*grads, strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * largest)


@pytest.fixture(scope='module')
def plain():
    return gradients({}, symmetric=True)


def test_the_gradients_of_many_parts_are_added_in_float32():
    """In bfloat16, a sum of ones would end at 256."""
    x = jnp.ones((512, 1), jnp.bfloat16)
    arguments = {'weight': jnp.ones((), jnp.bfloat16)}, {'x': x}, {}, 512, False
    _, grads = whole_batch_gradients(
        lambda params, rows: rows['x'] * params['weight'],
        lambda outputs, compared: (outputs.astype(jnp.float32).sum(), {}),
        *arguments,
    )
    assert float(grads['weight']) == 512


@pytest.mark.slow
def test_microbatches_give_the_gradients_of_the_batch(plain):
    # The rounding of a sum of B * C * S terms in another order.
    rounding = np.sqrt(B * C * S) * np.finfo(np.float32).eps
    check(gradients({}, 8, symmetric=True), plain, rounding)


@pytest.mark.parametrize(
    'axes, parts, sharded',
    [
        ({'data': 8}, 1, 'on'),
        pytest.param({'data': 8}, 2, 'on', marks=pytest.mark.slow),
        pytest.param({'data': 2, 'fsdp': 2, 'tensor': 2}, 2, 'off', marks=pytest.mark.slow),
    ],
)
def test_negatives_come_from_all_devices(plain, monkeypatch, axes, parts, sharded):
    monkeypatch.setattr(zero1, 'SMALL', 0)
    check(gradients(axes, parts, sharded, symmetric=True), plain, 1e-5)


@pytest.mark.slow
def test_packed_rows_give_the_same_gradients(plain, monkeypatch):
    monkeypatch.setattr(zero1, 'SMALL', 0)
    rows = B // 8
    # Several texts share a row of twice the length.
    layout = choose_layout(
        np.full((rows, C), S), cost=lambda length: 1.0, group_cost=1.0, max_groups=1, max_length=S, shared=True
    )
    assert len(layout.slots) == rows * C and layout.row_groups[0][1] == 2 * S
    packed = PackedLayout(layout.row_groups, layout.slots)
    check(gradients({'data': 8}, 1, 'on', layout=packed, symmetric=True), plain, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('loss, pool', [('cosent', 'cls'), ('cosine', 'lasttoken')])
def test_packed_rows_give_the_same_gradients_with_other_losses_and_poolings(monkeypatch, loss, pool):
    """On eight devices and in two parts, compared with separate rows on one device."""
    monkeypatch.setattr(zero1, 'SMALL', 0)
    rows = B // 8 // 2
    layout = choose_layout(np.full((rows, C), S), cost=float, group_cost=1.0, max_groups=1, max_length=S, shared=False)
    packed = PackedLayout(layout.row_groups, layout.slots)
    found = gradients({'data': 8}, 2, 'on', loss=loss, layout=packed, pool=pool)
    check(found, gradients({}, loss=loss, pool=pool), 1e-5)


@pytest.mark.slow
def test_microbatches_need_less_memory():
    """The similarities of all rows are small compared with the activations of the texts."""
    objective, batch = build_objective('info_nce'), make_batch()
    setup = setup_of(BertForEmbedding(MODEL), objective, optax.identity())
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), setup.state.params)
    sizes = []
    for parts in (1, 8):
        compute = make_gradients(setup, parts)
        compiled = jax.jit(compute).lower(params, batch, np.uint32(0), np.uint32(0)).compile()
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[1] < sizes[0] / 3
