"""Tests losses of embeddings against sentence-transformers, for texts without duplicates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.tasks.embedding.losses import build_objective

B, D = 6, 16
# case: (our loss, its options, number of texts per row, their class, its arguments)
CASES = {
    'pairs': ('info_nce', {}, 2, 'MultipleNegativesRankingLoss', {}),
    'hard negatives': ('info_nce', {'scale': 5.0}, 4, 'MultipleNegativesRankingLoss', {'scale': 5.0}),
    'symmetric': ('info_nce', {'symmetric': True}, 3, 'MultipleNegativesSymmetricRankingLoss', {}),
    'cosent': ('cosent', {'scale': 20.0}, 2, 'CoSENTLoss', {}),
    'cosine': ('cosine', {}, 2, 'CosineSimilarityLoss', {}),
    'a teacher': ('margin_mse', {'scale': 1.0}, 4, 'MarginMSELoss', {'similarity_fct': 'pairwise_cos_sim'}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('case', 'dims'), [*((case, (D,)) for case in CASES), ('pairs', (D, 8, 4)), ('a teacher', (D, 8, 4))], ids=str
)
def test_loss_and_gradient_are_equal(case: str, dims: tuple[int, ...]):
    torch = pytest.importorskip('torch', reason='computes their losses')
    losses = pytest.importorskip('sentence_transformers.sentence_transformer.losses', reason='has the losses')
    name, options, texts, theirs, arguments = CASES[case]
    util = pytest.importorskip('sentence_transformers.util', reason='has the similarities')
    arguments = {key: getattr(util, x) if key == 'similarity_fct' else x for key, x in arguments.items()}
    draw, shape = np.random.default_rng(0), (B, texts - 1) if name == 'margin_mse' else B
    x, scores = draw.standard_normal((B, texts, D)).astype(np.float32), draw.random(shape, np.float32)
    vectors = torch.tensor(x, requires_grad=True)
    loss = getattr(losses, theirs)(torch.nn.Identity(), **arguments)
    expected = sum(
        loss.compute_loss_from_embeddings([vectors[:, i, :width] for i in range(texts)], torch.tensor(scores))
        for width in dims  # MatryoshkaLoss adds them with weight 1.
    )
    expected.backward()
    objective = build_objective(name, dims, **options)
    batch = {'text_ids': jnp.arange(1, B * texts + 1).reshape(B, texts), 'weights': jnp.ones(B), 'labels': scores}

    def mean(x: jax.Array) -> jax.Array:
        total, weight = objective.losses({'embeddings': x}, batch)['loss']
        return total / weight

    value, gradient = jax.jit(jax.value_and_grad(mean))(x)
    assert float(value) == pytest.approx(expected.item(), rel=2e-6)
    np.testing.assert_allclose(gradient, vectors.grad, atol=2e-6 * float(vectors.grad.abs().max()) + 1e-7)
