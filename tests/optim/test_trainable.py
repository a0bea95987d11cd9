"""Tests training a part of a model, and the learning rates of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from train_fakes import constant_rate, setup_of

from bertjax.config.run import Optimizer
from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForClassification
from bertjax.model.stacking import stack_layers, unstack_layers
from bertjax.optim.masks import path_names
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.trainable import combine, layer_rates, make_selection, needs_unrolled, partition, select_all
from bertjax.training.step import Gradients, make_train_step, make_update

L, B, S = 3, 4, 6
RATE, DECAY = 1e-3, 0.5


def _model(scan):
    dims = dict(vocab_size=50, num_layers=L, width=8, num_heads=2, mlp_dim=16, max_positions=8)
    return BertForClassification(BertConfig(**dims, scan_layers=scan, dropout=0.0, attention_dropout=0.0), 3)


def _paths(tree):
    return {'/'.join(path_names(path)) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _state(model, trained, optimizer='adamw'):
    """Returns an initial state without zero parameters, so that weight decay would change each of them."""
    shapes = _setup(model, optimizer, trained).state
    state, rng = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), np.random.default_rng(0)
    draw = lambda x: jnp.asarray(0.05 + 0.02 * rng.standard_normal(x.shape), x.dtype)  # noqa: E731
    return state.replace(params=jax.tree.map(draw, state.params))


def _batch():
    rng = np.random.default_rng(0)
    return {
        'input_ids': rng.integers(1, 50, (B, S)).astype(np.int32),
        'segment_ids': np.tile(np.arange(S) >= 3, (B, 1)).astype(np.int32),
        'attention_mask': np.ones((B, S), np.int32),
        'labels': np.array([0, 1, 2, 1], np.int32),
        'weights': np.ones(B, np.float32),
    }


def _setup(model, optimizer='adamw', trained=select_all, layer_decay=1.0, **changes):
    optimizer = make_optimizer(**vars(Optimizer(optimizer, **changes)))
    return setup_of(model, CLASSIFICATION, optimizer, trained=trained, layer_decay=layer_decay)


def _step(model, trained, optimizer='adamw', **changes):
    """Returns a function (state, batch) -> (new state, metrics)."""
    setup = _setup(model, optimizer, trained, **changes)
    step, numbers = make_train_step(setup), (jnp.uint32(0), constant_rate(RATE), jnp.uint32(0))
    return jax.jit(lambda state, batch: step(state, batch, *numbers))


def _largest_changes(before, after):
    changes = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), before, after)
    return {'/'.join(path_names(path)): x for path, x in jax.tree_util.tree_flatten_with_path(changes)[0]}


@pytest.fixture(scope='module')
def trees():
    """Returns {whether layers are scanned: tree of the shapes of the parameters}."""
    abstract = {scan: jax.eval_shape(_setup(_model(scan)).init, jax.random.key(0)).params for scan in (True, False)}
    is_box = lambda x: isinstance(x, nn.Partitioned)  # noqa: E731
    return {scan: jax.tree.map(lambda x: x.value, tree, is_leaf=is_box) for scan, tree in abstract.items()}


@pytest.mark.parametrize('scan', [True, False], ids=['scanned', 'unrolled'])
def test_all_selects_everything_and_head_excludes_the_encoder(trees, scan):
    tree = trees[scan]
    assert partition(tree, make_selection('all', L)) == (tree, {})
    trained, frozen = partition(tree, make_selection('head', L))
    assert set(trained) == {'pooler', 'head'} and frozen == {'encoder': tree['encoder']}
    assert not needs_unrolled('all') and not needs_unrolled('head') and needs_unrolled('last_2')


@pytest.mark.parametrize('count', [1, 2, L])
def test_last_k_selects_the_top_blocks_and_the_head(trees, count):
    chosen, _ = partition(trees[False], make_selection(f'last_{count}', L))
    assert set(chosen) == {'encoder', 'pooler', 'head'}
    assert set(chosen['encoder']) == {f'layers_{i}' for i in range(L - count, L)}
    assert chosen['encoder'][f'layers_{L - 1}'] == trees[False]['encoder'][f'layers_{L - 1}']


@pytest.mark.parametrize('word', ['last_0', f'last_{L + 1}', 'last_', 'last_-1', 'last_two', 'last', 'first_2', ''])
def test_unknown_selections_are_refused(word):
    with pytest.raises(
        UserError, match=rf"config\.trainable: found '{word}', expected .*K from 1 to 3.*--config.trainable="
    ):
        make_selection(word, L)


def test_partition_and_combine_give_the_same_tree():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(_setup(_model(False)).init, jax.random.key(0)).params
    params = jax.tree.map(lambda x: rng.standard_normal(x.shape), shapes)
    for word in ('all', 'head', 'last_1'):
        trained = make_selection(word, L)
        chosen, frozen = partition(params, trained)
        assert _paths(chosen) | _paths(frozen) == _paths(params) and not _paths(chosen) & _paths(frozen)
        jax.tree.map(np.testing.assert_array_equal, combine(chosen, frozen), params)
        new = combine(jax.tree.map(lambda x: x + 1, chosen), frozen)
        assert jax.tree.structure(new) == jax.tree.structure(params)
        changed = {path for path, change in _largest_changes(params, new).items() if change}
        assert changed == _paths(chosen)


def test_the_rates_of_stacked_and_unrolled_layers_are_equal(trees):
    unrolled = layer_rates(trees[False], DECAY, L)
    expected = {f'layers_{i}': DECAY ** (L - i) for i in range(L)} | {'embeddings': DECAY ** (L + 1)}
    assert {name: set(jax.tree.leaves(tree)) for name, tree in unrolled['encoder'].items()} == {
        name: {rate} for name, rate in expected.items()
    }
    assert set(jax.tree.leaves([unrolled['pooler'], unrolled['head']])) == {1.0}
    stacked = layer_rates(trees[True], DECAY, L)
    ones = {scan: jax.tree.map(lambda x: np.ones(x.shape, np.float32), tree) for scan, tree in trees.items()}
    scaled = {
        True: unstack_layers(jax.tree.map(np.multiply, ones[True], stacked)),
        False: jax.tree.map(np.multiply, ones[False], unrolled),
    }
    jax.tree.map(np.testing.assert_array_equal, scaled[True], scaled[False])


@pytest.mark.parametrize(
    'train, scan, optimizer',
    [
        pytest.param('all', True, 'adamw', marks=pytest.mark.slow),
        ('head', True, 'lamb'),
        pytest.param('head', False, 'adamw', marks=pytest.mark.slow),
        pytest.param('last_2', False, 'lamb', marks=pytest.mark.slow),
    ],
)
def test_frozen_parameters_are_unchanged_and_have_no_moments(train, scan, optimizer):
    model, trained = _model(scan), make_selection(train, L)
    state = _state(model, trained, optimizer)
    chosen = _paths(partition(state.params, trained)[0])
    moments = [s for s in jax.tree.leaves(state.opt_state, is_leaf=_is_adam) if _is_adam(s)]
    assert len(moments) == 1 and _paths(moments[0].mu) == _paths(moments[0].nu) == chosen
    new, metrics = _step(model, trained, optimizer)(state, _batch())
    changes = _largest_changes(state.params, new.params)
    # The bias of the keys adds the same number to all scores of a query, so its gradient is only a rounding error.
    key_biases = {path for path in chosen if path.endswith('attention/key/bias')}
    assert chosen - key_biases <= {path for path, change in changes.items() if change} <= chosen
    assert jax.tree.structure(new) == jax.tree.structure(state) and int(new.skipped) == 0
    assert float(metrics['scalars']['grad_norm']) > 0


def _is_adam(x):
    return isinstance(x, optax.ScaleByAdamState)


@pytest.mark.slow
def test_trained_parameters_have_the_updates_of_full_training():
    """This holds without clipping by the global norm, which depends on all trained parameters."""
    model = _model(False)
    changes = {}
    for word in ('all', 'last_1'):
        trained = make_selection(word, L)
        state = _state(model, trained)
        new, _ = _step(model, trained, clip_norm=0.0)(state, _batch())
        changes[word], _ = partition(jax.tree.map(jnp.subtract, new.params, state.params), make_selection('last_1', L))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-8), *changes.values())


@pytest.mark.slow
def test_layer_decay_scales_the_updates_of_stacked_and_unrolled_layers():
    """The gradients are the parameters, because only the update depends on the decay."""
    moved = {}
    for scan in (True, False):
        model = _model(scan)
        state = _state(model, select_all)
        if scan:
            start = state.params
        else:
            state = state.replace(params=unstack_layers(start))
        gradients = Gradients(state.params, jnp.float32(1), {}, {})
        for decay in (1.0, DECAY):
            update = jax.jit(make_update(_setup(model, layer_decay=decay)))
            after = update(state, gradients, constant_rate(RATE))[0].params
            moved[scan, decay] = jax.tree.map(jnp.subtract, after if scan else stack_layers(after), start)
    for decay in (1.0, DECAY):
        close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)  # noqa: E731
        jax.tree.map(close, moved[True, decay], moved[False, decay])
    rates = layer_rates(start, DECAY, L)
    close = lambda p, d, r: np.testing.assert_allclose(d, p * r, rtol=1e-3, atol=2e-8)  # noqa: E731
    jax.tree.map(close, moved[True, 1.0], moved[True, DECAY], rates)
