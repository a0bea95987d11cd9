"""Tests optimizers against NumPy, optax and PyTorch."""

import math

import flax
import jax
import numpy as np
import optax
import optax.contrib
import pytest
from flax import linen as nn
from marks import slow

from bertjax.config.run import Optimizer
from bertjax.model.stacking import unstack_layers
from bertjax.optim.masks import decay_mask, path_names
from bertjax.optim.muon import is_block_kernel, orthogonalize_kernels
from bertjax.optim.optimizers import OPTIMIZERS, make_optimizer
from bertjax.optim.trainable import partition

B1, B2, EPS, DECAY = 0.9, 0.999, 1e-6, 0.01
STEPS = 6


def optimizer_of(name, **changes):
    return make_optimizer(**vars(Optimizer(name, **{'clip_norm': 0.0, **changes})))


def simple_params():
    rng = np.random.default_rng(0)
    return {
        'dense': {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)},
        'norm': {'scale': rng.normal(size=3), 'bias': rng.normal(size=3)},
        'token': {'embedding': rng.normal(size=(5, 4))},
    }


def gradients(step, like):
    """Returns gradients in the shapes of `like`. Their scale varies between steps, and about a tenth is zero."""
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape) * 10.0 ** rng.integers(-6, 2) * (rng.random(x.shape) > 0.1), like
    )


def train(optimizer, params, rate, steps=STEPS):
    @jax.jit
    def update(grads, state, params):
        direction, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, direction), state

    params = float32(params)
    state = jax.jit(optimizer.init)(params)
    for step in range(steps):
        params, state = update(float32(gradients(step, params)), state, params)
    return params, state


def float32(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float32), tree)


def first_update(optimizer, grads, params):
    """Returns the update and the state after the first step."""
    return jax.jit(lambda grads, params: optimizer.update(grads, optimizer.init(params), params))(grads, params)


def assert_trees_close(ours, theirs, **tolerance):
    def compare(path, x, y):
        np.testing.assert_allclose(x, y, err_msg='/'.join(path_names(path)), **tolerance)

    jax.tree_util.tree_map_with_path(compare, ours, theirs)


def test_bert_adam_equals_numpy():
    """AdamWeightDecayOptimizer of google-research/bert: no bias correction, and decay that does not enter moments."""
    rate = 0.05
    params = simple_params()
    m = jax.tree.map(np.zeros_like, params)
    v = jax.tree.map(np.zeros_like, params)
    for step in range(STEPS):
        g = gradients(step, params)
        for module, leaves in params.items():
            for name, p in leaves.items():
                m[module][name] = B1 * m[module][name] + (1 - B1) * g[module][name]
                v[module][name] = B2 * v[module][name] + (1 - B2) * g[module][name] ** 2
                update = m[module][name] / (np.sqrt(v[module][name]) + EPS)
                if name not in ('bias', 'scale'):
                    update = update + DECAY * p
                leaves[name] = p - rate * update
    ours, state = train(optimizer_of('bert_adam'), simple_params(), rate)
    assert_trees_close(ours, params, rtol=2e-5, atol=2e-6)
    assert int(state[1].count) == STEPS


def test_bert_adam_has_no_bias_correction():
    """The first update is (1 - b1) g / (sqrt(1 - b2) |g| + eps) = 3.16 sign(g). With correction, it is sign(g)."""
    g = np.array([-2.0, 1e-3, 5.0], np.float32)
    params = {'bias': np.zeros(3, np.float32)}
    for name, size in (('bert_adam', 0.1 / np.sqrt(0.001)), ('adamw', 1.0)):
        direction, _ = first_update(optimizer_of(name, eps=1e-12), {'bias': g}, params)
        np.testing.assert_allclose(direction['bias'], size * np.sign(g), rtol=1e-4)


@pytest.mark.slow
def test_adamw_equals_optax():
    rate = 0.05
    ours, _ = train(optimizer_of('adamw'), simple_params(), rate)
    # The optimizers of optax return the negative update, with the learning rate.
    theirs = optax.adamw(rate, b1=B1, b2=B2, eps=EPS, weight_decay=DECAY, mask=decay_mask)
    params, _ = train(theirs, simple_params(), -1)
    assert_trees_close(ours, params, rtol=1e-6, atol=1e-7)


def test_adamw_equals_torch():
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    rate = 0.05
    ours, _ = train(optimizer_of('adamw'), simple_params(), rate)
    leaves = jax.tree_util.tree_flatten_with_path(simple_params())[0]
    tensors = [torch.nn.Parameter(torch.tensor(x)) for _, x in leaves]
    decay_flags = [path_names(path)[-1] not in ('bias', 'scale') for path, _ in leaves]
    groups = [
        {
            'params': [t for t, flag in zip(tensors, decay_flags, strict=True) if flag == decays],
            'weight_decay': DECAY * decays,
        }
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(B1, B2), eps=EPS)
    for step in range(STEPS):
        for tensor, g in zip(tensors, jax.tree.leaves(gradients(step, simple_params())), strict=True):
            tensor.grad = torch.tensor(g)
        optimizer.step()
    for (path, x), tensor in zip(jax.tree_util.tree_flatten_with_path(ours)[0], tensors, strict=True):
        np.testing.assert_allclose(x, tensor.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg='/'.join(path_names(path)))


@pytest.mark.parametrize('eps', [EPS, 1e-30])
def test_stable_adamw_equals_numpy(eps):
    """Algorithm 2 of arXiv 2304.13013 with debiased betas; clipping divides the learning rate of each tensor."""
    rate = 0.05
    params = simple_params()
    m, v = (jax.tree.map(np.zeros_like, params) for _ in range(2))
    clipped = 0
    for t in range(1, STEPS + 1):
        g = gradients(t - 1, params)
        b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (B1, B2))
        for module, leaves in params.items():
            for name, p in leaves.items():
                x = g[module][name]
                m[module][name] = b1 * m[module][name] + (1 - b1) * x
                v[module][name] = b2 * v[module][name] + (1 - b2) * x**2
                rms = np.sqrt(np.mean(x**2 / np.maximum(v[module][name], eps**2)))
                clipped += rms > 1
                step = rate / max(1.0, rms)
                decay = DECAY * (name not in ('bias', 'scale'))
                leaves[name] = p * (1 - step * decay) - step * m[module][name] / (np.sqrt(v[module][name]) + eps)
    ours, _ = train(optimizer_of('stable_adamw', eps=eps), simple_params(), rate)
    assert clipped > STEPS
    assert_trees_close(ours, params, rtol=2e-5, atol=2e-6)


def test_lamb_equals_numpy():
    """Algorithm 2 of LAMB with bias correction, on unstacked parameters. Biases and scales have plain Adam updates."""
    rate = 0.05
    params = simple_params()
    m = jax.tree.map(np.zeros_like, params)
    v = jax.tree.map(np.zeros_like, params)
    for step in range(STEPS):
        g = gradients(step, params)
        for module, leaves in params.items():
            for name, p in leaves.items():
                m[module][name] = B1 * m[module][name] + (1 - B1) * g[module][name]
                v[module][name] = B2 * v[module][name] + (1 - B2) * g[module][name] ** 2
                r = m[module][name] / (1 - B1 ** (step + 1)) / (np.sqrt(v[module][name] / (1 - B2 ** (step + 1))) + EPS)
                if name not in ('bias', 'scale'):
                    r = r + DECAY * p
                    r = r * np.linalg.norm(p) / np.linalg.norm(r)
                leaves[name] = p - rate * r
    ours, _ = train(optimizer_of('lamb'), simple_params(), rate)
    assert_trees_close(ours, params, rtol=5e-5, atol=5e-6)


@pytest.mark.slow
def test_lamb_stacked_equals_lamb_layer_by_layer(scanned):
    stacked, _ = train(optimizer_of('lamb'), scanned, 0.1, steps=1)
    # `gradients` depends on the shapes, so the gradients of the stacked tree are unstacked.
    params = unstack_layers(scanned)
    grads = unstack_layers(float32(gradients(0, scanned)))
    direction, _ = first_update(optimizer_of('lamb'), grads, params)
    unrolled = jax.tree.map(lambda p, u: p - 0.1 * u, params, direction)
    assert_trees_close(unstack_layers(stacked), unrolled, rtol=1e-5, atol=1e-6)
    # The equality would prove nothing if all layers had the same trust ratio.
    norm = lambda i: float(np.linalg.norm(direction['encoder'][f'layers_{i}']['mlp']['up']['kernel']))  # noqa: E731
    assert abs(norm(0) - norm(1)) > 1e-3


def test_lamb_has_a_trust_ratio_for_each_layer_of_a_stack():
    """The kernels of the layers are scaled by 0.1, 1 and 10, and the norm of each update is the norm of its kernel."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(16, 16))
    params = {'layers': {'kernel': np.stack([0.1 * kernel, kernel, 10 * kernel]), 'bias': np.zeros((3, 16))}}
    grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
    direction, _ = first_update(optimizer_of('lamb'), float32(grads), float32(params))
    norms = np.linalg.norm(np.asarray(direction['layers']['kernel']).reshape(3, -1), axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(kernel) * np.array([0.1, 1, 10]), rtol=1e-5)
    # Biases have the plain Adam update, without a trust ratio. Each element has size 1 at the first step.
    np.testing.assert_allclose(np.abs(direction['layers']['bias']), 1.0, rtol=1e-3)


def test_the_trust_ratio_of_a_zero_norm_is_one():
    zeros, ones = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    params, grads = ({'a': {'kernel': a}, 'b': {'kernel': b}} for a, b in ((zeros, ones), (ones, zeros)))
    direction, _ = first_update(optimizer_of('lamb', weight_decay=0.0), grads, params)
    np.testing.assert_allclose(direction['a']['kernel'], 1.0, rtol=1e-4)
    np.testing.assert_array_equal(direction['b']['kernel'], 0.0)


def newton_schulz(matrix):
    """Returns the result of five steps of Muon's quintic Newton-Schulz iteration in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def numpy_muon(params, rate, steps, momentum=0.95, ratio=0.3):
    """Returns parameters after `steps` of Muon and AdamW in NumPy.

    Args:
      params: The float64 parameters of an unrolled model, {(name, ...): array}.
      rate: The learning rate.
      steps: The number of steps.
      momentum: The momentum of Muon.
      ratio: The learning rate of AdamW relative to that of Muon.
    """
    m, v, params = {}, {}, dict(params)
    for step in range(steps):
        corrected = lambda beta, n: 1 - beta ** (n + 1)  # noqa: E731
        for names, g in flat(gradients(step, unflat(params))).items():
            p, block = params[names], names[1].startswith('layers_') and names[-1] == 'kernel'
            if block:
                m[names] = momentum * m.get(names, 0) + g
                inputs = math.prod(g.shape[:2]) if names[-2] == 'output' else g.shape[0]
                matrix = (g + momentum * m[names]).reshape(inputs, -1)
                update = newton_schulz(matrix) * max(1, matrix.shape[1] / matrix.shape[0]) ** 0.5
                update = update.reshape(g.shape) + DECAY * p
            else:
                m[names] = B1 * m.get(names, 0) + (1 - B1) * g
                v[names] = B2 * v.get(names, 0) + (1 - B2) * g**2
                update = m[names] / corrected(B1, step) / (np.sqrt(v[names] / corrected(B2, step)) + EPS)
                update = ratio * (update + DECAY * p * (names[-1] not in ('bias', 'scale')))
            params[names] = p - rate * update
    return params


def flat(tree):
    return {path_names(path): np.asarray(x, np.float64) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def unflat(leaves):
    return flax.traverse_util.unflatten_dict(leaves)


@pytest.mark.parametrize('model', ['scanned', *slow('gated')])
def test_muon_equals_numpy(model, request):
    params = unstack_layers(request.getfixturevalue(model))
    ours, state = train(optimizer_of('muon'), params, 0.02)
    expected = numpy_muon(flat(params), 0.02, STEPS)
    # The iteration amplifies the rounding errors of float32 in nearly singular matrices.
    assert_trees_close(ours, unflat(expected), rtol=1e-3, atol=2e-5)
    kernels = {n for n in expected if n[1].startswith('layers_') and n[-1] == 'kernel'}
    assert set(flat(state[1].muon.trace)) == kernels and len(kernels) == 3 * (7 if model == 'gated' else 6)


@pytest.mark.slow
def test_the_first_update_of_muon_equals_optax(scanned):
    """Later updates differ: the momentum of optax is a bias-corrected average."""
    shapes = {'query': ((0,), (1, 2)), 'output': ((0, 1), (2,)), 'up': ((0,), (1,)), 'down': ((0,), (1,))}
    layer = unstack_layers(scanned)['encoder']['layers_0']
    kernels = {names: x for names, x in flat(layer).items() if names[-2] in shapes and names[-1] == 'kernel'}
    grads = float32(gradients(0, kernels))
    axes = {names: optax.contrib.MuonDimensionNumbers(*shapes[names[-2]]) for names in kernels}
    theirs = optax.contrib.muon(1.0, muon_weight_dimension_numbers=axes)
    expected, _ = first_update(theirs, grads, grads)
    ours = jax.jit(orthogonalize_kernels)({'encoder': {'layers_0': unflat(grads)}})['encoder']['layers_0']
    assert_trees_close(ours, unflat({names: -x for names, x in expected.items()}), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_muon_in_bfloat16_is_close_to_float32(gated):
    params = unstack_layers(gated)
    grads, updates = float32(gradients(0, params)), {}
    for dtype in ('float32', 'bfloat16'):
        optimizer = make_optimizer(**vars(Optimizer('muon', clip_norm=0.0)), dtype=dtype)
        updates[dtype] = flat(first_update(optimizer, grads, params)[0])
    for names, expected in updates['float32'].items():
        error = np.linalg.norm(updates['bfloat16'][names] - expected) / np.linalg.norm(expected)
        assert 1e-3 < error < 0.05 if is_block_kernel(names) else error == 0, names


@pytest.mark.slow
@pytest.mark.parametrize('model', ['scanned', 'gated'])
def test_muon_stacked_equals_muon_layer_by_layer(model, request):
    """Query, key, value, gate and up of each layer are separate matrices."""
    scanned = request.getfixturevalue(model)
    optimizer, grads = optimizer_of('muon'), float32(gradients(0, scanned))
    stacked, _ = first_update(optimizer, grads, scanned)
    expected, _ = first_update(optimizer, unstack_layers(grads), unstack_layers(scanned))
    assert_trees_close(unstack_layers(stacked), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(('clip', 'factor'), [(1.0, 1 / 13), (100.0, 1.0), (0.0, 1.0)])
def test_gradients_are_clipped_by_their_global_norm(clip, factor):
    grads = {'a': np.array([3.0, 4.0], np.float32), 'b': np.array([12.0], np.float32)}  # The norm is 13.
    grads = {name: {'bias': x} for name, x in grads.items()}
    params = jax.tree.map(np.zeros_like, grads)
    _, state = first_update(optimizer_of('bert_adam', clip_norm=clip), grads, params)
    mu = np.concatenate([state[1].mu['a']['bias'], state[1].mu['b']['bias']])
    np.testing.assert_allclose(mu, (1 - B1) * factor * np.array([3.0, 4.0, 12.0]), rtol=1e-5)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_clipping_does_not_change_the_structure_of_the_state(name, scanned):
    with_clip, without = (jax.eval_shape(optimizer_of(name, clip_norm=clip).init, scanned) for clip in (1.0, 0.0))
    assert jax.tree.structure(with_clip) == jax.tree.structure(without)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_moments_of_boxed_parameters_are_boxed(name, scanned_boxed):
    state = jax.eval_shape(optimizer_of(name).init, scanned_boxed)
    kernels, rest = partition(scanned_boxed, is_block_kernel)
    moments = (
        [(state[1].muon.trace, kernels), (state[1].adam.mu, rest)]
        if name == 'muon'
        else [(state[1].mu, scanned_boxed), (state[1].nu, scanned_boxed)]
    )
    for moment, params in moments:
        assert nn.get_partition_spec(moment) == nn.get_partition_spec(params)
