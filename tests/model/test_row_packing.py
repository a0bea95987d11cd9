"""Tests that sequences in packed rows have the outputs and gradients of sequences in separate rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from marks import slow

from bertjax.data.strata import choose_layout
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import Embeddings
from bertjax.model.heads import BertForClassification, BertForTokens
from bertjax.model.row_packing import PackedLayout
from bertjax.tasks.embedding.head import BertForEmbedding

LENGTHS = np.array([5, 24, 3, 16, 8, 20, 4, 12])
FOUR_A_ROW = np.array([5, 7, 0, 4, 16, 0, 0, 0, 1, 1, 1, 13, 0, 0, 0, 0])  # Four consecutive ones fit in a row of 16.


def rows_of(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    positions = np.arange(lengths.max())
    mask = (positions < lengths[:, None]).astype(np.int32)
    segments = (positions > lengths[:, None] // 2).astype(np.int32) * mask
    return np.random.default_rng(0).integers(5, 150, mask.shape).astype(np.int32) * mask, segments, mask


def layout_of(*, shared: bool) -> PackedLayout:
    """Returns a layout of equal rows with several sequences (`shared`), or of rows of three lengths with one each."""
    chosen = choose_layout(
        LENGTHS[:, None],
        cost=lambda length: length if shared else length + length**3,
        group_cost=0,
        max_groups=1 if shared else 3,
        max_length=512,
        shared=shared,
    )
    layout = PackedLayout(chosen.row_groups, chosen.slots)
    assert len(layout.row_groups) == (1 if shared else 3) and (max(layout.most_sequences) > 1) == shared
    assert layout.positions < len(LENGTHS) * 24
    return layout


def gradients(model, params, rows, layout):
    """Returns ((loss, outputs with zeros for padding), gradients), computed with dropout."""
    real = rows[2] > 0
    dropout = Dropout(jnp.uint32(3), 7 + jnp.arange(len(real), dtype=jnp.uint32))

    def loss(params):
        outputs = model.clone(packing=layout).apply({'params': params}, *rows, dropout=dropout)
        outputs = [x if x.shape[:2] != real.shape else _where(real, x) for x in outputs.values()]
        return sum(jnp.sin(x).sum() for x in outputs), outputs

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


def _where(real, x):
    return jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, 0)


def assert_close(actual, expected):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'head, changes, shared',
    [
        (BertForClassification, {'scan_layers': False, 'remat': 'elementwise'}, False),
        (BertForClassification, {'causal': True}, True),
        (BertForTokens, {'pre_norm': True}, True),
    ],
)
def test_losses_and_gradients_in_fixed_slots_equal_those_in_separate_rows(
    small_config, make_params, head, changes, shared
):
    rows = rows_of(LENGTHS)
    model = head(small_config(dropout=0.2, attention_dropout=0.2, num_layers=2, **changes), outputs=2)
    params = make_params(model)
    packed = gradients(model, params, rows, layout_of(shared=shared))
    assert_close(packed, gradients(model, params, rows, None))


@pytest.mark.slow
def test_cls_of_a_causal_encoder_sees_itself_in_fixed_slots(small_config, make_params):
    rows = rows_of(LENGTHS)
    model = BertForEmbedding(small_config(causal=True, scan_layers=False), pool='cls')
    params = make_params(model)
    layout = layout_of(shared=True)
    alone, packed = (model.clone(packing=packing).apply({'params': params}, *rows) for packing in (None, layout))
    assert_close(packed, alone)


@pytest.mark.slow
def test_long_packed_rows_with_by_head_cpu_equal_separate_rows(small_config, make_params):
    """The packed rows are so long that 'auto' chooses `by_head_cpu`."""
    ids, _, mask = rows_of(np.array([200, 60, 130, 110]))
    rows = ids, 0 * mask, mask
    config = small_config(dropout=0.2, attention_dropout=0.2, num_layers=1, scan_layers=False, max_positions=512)
    layout = PackedLayout(((2, 260),), ((0, 200), (200, 60), (260, 130), (390, 110)))
    for head in (BertForClassification, BertForTokens):
        model = head(config, outputs=2)
        params = make_params(model)
        assert_close(gradients(model, params, rows, layout), gradients(model, params, rows, None))


UNROLLED = {'scan_layers': False, 'attention': 'dot_product', 'causal': True}


@pytest.mark.parametrize('changes', [{}, *slow(UNROLLED)])
def test_states_of_four_sequences_per_row_equal_those_in_separate_rows(make_model, changes):
    rows = rows_of(FOUR_A_ROW)
    model, params = make_model(**changes)
    shapes = []

    def record_shape(call, args, kwargs, context):
        if isinstance(context.module, Embeddings) and context.method_name == '__call__':
            shapes.append(args[0].shape)
        return call(*args, **kwargs)

    def forward(packing):
        def apply(params, rows):
            with nn.intercept_methods(record_shape):
                return model.clone(packing=packing).apply({'params': params}, *rows, method='encode')

        return jax.jit(apply)(params, rows)

    alone, packed = forward(None), forward(4)
    assert set(shapes) == {(16, 16), (4, 16)}
    real = rows[2] > 0
    np.testing.assert_allclose(packed[0][real], alone[0][real], atol=1e-5)
    np.testing.assert_allclose(packed[1][:, real], alone[1][:, real], atol=1e-5)
    np.testing.assert_allclose(packed[2][FOUR_A_ROW > 0], alone[2][FOUR_A_ROW > 0], atol=1e-5)
    assert not packed[0][~real].any()


@pytest.mark.slow
def test_a_classification_head_gets_the_first_position_of_each_sequence(small_config, make_params):
    rows = rows_of(FOUR_A_ROW)
    model = BertForClassification(small_config(scan_layers=False), outputs=3)
    params = make_params(model)
    alone, packed = (
        jax.jit(model.clone(packing=packing).apply)({'params': params}, *rows)['logits'] for packing in (None, 4)
    )
    np.testing.assert_allclose(packed[FOUR_A_ROW > 0], alone[FOUR_A_ROW > 0], atol=1e-5)


@pytest.mark.slow
def test_pretraining_heads_of_four_sequences_per_row_equal_those_in_separate_rows(make_model):
    """Filling masks of many short texts uses this form."""
    rows = (*rows_of(FOUR_A_ROW), np.zeros((len(FOUR_A_ROW), 2), np.int32))
    model, params = make_model()
    alone, packed = (jax.jit(model.clone(packing=packing).apply)({'params': params}, *rows) for packing in (None, 4))
    for name, logits in alone.items():
        np.testing.assert_allclose(packed[name][FOUR_A_ROW > 0], logits[FOUR_A_ROW > 0], atol=1e-5)
