"""Tests that losses of embeddings equal plain loops in float64, and their gradients finite differences."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from bertjax.tasks.embedding.losses import LOSSES, build_objective, in_batch_cross_entropy

B, D = 5, 6
# Row 1 has the anchor of row 0, row 2 has the positive of row 0 and lacks a negative, a negative of row 3 is the anchor
# of row 1, and row 4 is padding.
IDS = np.array([[1, 2, 3, 4], [1, 5, 6, 7], [8, 2, 9, 0], [10, 11, 1, 12], [0, 0, 0, 0]], np.int32)
WEIGHTS = np.float32([1, 1, 1, 1, 0])
SCORES = np.float32([0.2, 0.9, 0.2, 0.5, 0.7])
TEACHER = np.random.default_rng(4).standard_normal((5, 3)).astype(np.float32)


def unit(x):
    return x / max(math.sqrt((x * x).sum()), 1e-12)


def entropy(row, target, candidates, scale):
    """Returns -log of the softmax probability of `target` among `candidates`, which are keys of `row`."""
    return math.log(sum(math.exp(scale * row[j]) for j in candidates)) - scale * row[target]


def info_nce(x, ids, scale=20.0, symmetric=False, false_negative_margin=0.0):
    count, choices = ids.shape
    texts = [(r, c) for c in range(1, choices) for r in range(count)]
    total, rows = 0.0, [r for r in range(count) if ids[r, 0]]
    sim = lambda a, b: float(unit(x[a]) @ unit(x[b]))  # noqa: E731

    def near(value, positive):
        return false_negative_margin and value > positive + false_negative_margin

    def is_same(i, text):
        return ids[text] in (ids[i, 0], *(ids[r, 1] for r in rows if ids[r, 0] == ids[i, 0]))

    for i in rows:
        row = {text: sim((i, 0), text) for text in texts}
        candidates = [
            text
            for text in texts
            if text == (i, 1) or (ids[text] and not is_same(i, text) and not near(row[text], row[i, 1]))
        ]
        forward = entropy(row, (i, 1), candidates, scale)
        back = {r: sim((r, 0), (i, 1)) for r in rows}
        candidates = [r for r in rows if r == i or not (is_same(r, (i, 1)) or near(back[r], back[i]))]
        total += (forward + entropy(back, i, candidates, scale)) / 2 if symmetric else forward
    return total / len(rows)


def cosent(x, scores, scale=20.0):
    sims = [float(unit(a) @ unit(b)) for a, b in x[:, :2]]
    pairs = [(i, j) for i, j in itertools.product(range(B - 1), repeat=2) if scores[i] > scores[j]]
    return math.log(1 + sum(math.exp(scale * (sims[j] - sims[i])) for i, j in pairs))


def cosine(x, scores):
    return float(np.mean([(unit(a) @ unit(b) - score) ** 2 for (a, b), score in zip(x[:4, :2], scores, strict=False)]))


def margin_mse(x, teacher, scale=20.0):
    """Row 2 lacks the third text, which counts for nothing."""
    losses = []
    for row, ids, scores in zip(x[:4], IDS, teacher.tolist(), strict=False):
        own = [scale * float(unit(row[0]) @ unit(text)) for text in row[1:]]
        errors = [(own[0] - s - scores[0] + t) ** 2 for s, t, i in zip(own, scores, ids[1:], strict=True) if i][1:]
        losses.append(np.mean(errors))
    return float(np.mean(losses))


CASES = {
    'one negative each': ('info_nce', {}, 3),
    'several': ('info_nce', {}, 4),
    'pairs, another scale': ('info_nce', {'scale': 5.0}, 2),
    'symmetric': ('info_nce', {'symmetric': True}, 4),
    'margin': ('info_nce', {'false_negative_margin': 0.1}, 4),
    'symmetric with margin': ('info_nce', {'false_negative_margin': 0.05, 'symmetric': True}, 2),
    'cosent': ('cosent', {'scale': 20.0}, 2),
    'cosine': ('cosine', {}, 2),
    'a teacher': ('margin_mse', {'scale': 5.0}, 4),
}
QUICK = ('several', 'cosent', 'cosine', 'a teacher')


@pytest.mark.parametrize(
    'case, dims',
    [
        *((case, ()) for case in QUICK),
        ('symmetric with margin', (6, 3)),
        *(pytest.param(case, (), marks=pytest.mark.slow) for case in CASES if case not in QUICK),
        *(pytest.param(case, (6, 3), marks=pytest.mark.slow) for case in CASES if case != 'symmetric with margin'),
    ],
    ids=lambda value: value if isinstance(value, str) else 'matryoshka' if value else 'whole',
)
def test_loss_and_gradient_equal_plain_loops(case, dims):
    name, options, choices = CASES[case]
    x = np.random.default_rng(3).standard_normal((B, choices, D))
    x[IDS[:, :choices] == 0] = 0  # The vector of a missing text is zero, and must not give NaN.

    def reference(x):
        second = {'info_nce': IDS[:, :choices], 'margin_mse': TEACHER}.get(name, SCORES)
        function = {'info_nce': info_nce, 'cosent': cosent, 'cosine': cosine, 'margin_mse': margin_mse}[name]
        return sum(function(x[..., :width], second, **options) for width in dims or (D,))

    objective = build_objective(name, dims, **options)
    labels = TEACHER if name == 'margin_mse' else SCORES
    batch = {'text_ids': IDS[:, :choices], 'weights': WEIGHTS, 'labels': labels}

    def mean(x):
        total, weight = objective.losses({'embeddings': x}, batch)['loss']
        return total / weight

    value, gradient = jax.jit(jax.value_and_grad(mean))(x.astype(np.float32))
    assert value == pytest.approx(reference(x), rel=2e-6)
    assert objective.weights(batch) == {'loss': 4}
    step, expected = 1e-5, np.zeros_like(x)
    for index in zip(*np.nonzero(x), strict=True):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        expected[index] = (reference(up) - reference(down)) / (2 * step)
    np.testing.assert_allclose(gradient, expected, atol=2e-5 * np.abs(expected).max())


def test_a_positive_that_equals_its_anchor_is_not_a_false_negative():
    """SimCSE pairs a text with itself. Two rows of the same text have no negatives, so their loss is 0."""
    losses = jax.jit(build_objective('info_nce').losses)
    x = np.random.default_rng(0).standard_normal((2, 2, D)).astype(np.float32)
    same = {'text_ids': np.ones((2, 2), np.int32), 'weights': np.ones(2, np.float32)}
    assert float(losses({'embeddings': x}, same)['loss'][0]) == pytest.approx(0, abs=1e-6)
    other = {**same, 'text_ids': np.array([[1, 1], [2, 2]], np.int32)}
    assert float(losses({'embeddings': x}, other)['loss'][0]) > 0.1


def test_no_positive_of_the_same_anchor_is_a_negative():
    """Row 2 repeats the positive of row 1, which has the anchor of row 0. So only row 2 has a negative."""
    similarity = np.float32([[0, 9, 9], [9, 0, 9], [9, 9, 0]])
    compute = jax.jit(functools.partial(in_batch_cross_entropy, scale=1.0))
    loss = compute(similarity, np.array([[1, 2], [1, 3], [4, 3]]))
    np.testing.assert_allclose(loss, [0, 0, np.log1p(np.exp(9))], rtol=1e-6)


def test_every_loss_is_tested():
    assert {name for name, _, _ in CASES.values()} == set(LOSSES)
