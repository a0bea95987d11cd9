"""Tests distillation losses against float64 PyTorch."""

import types

import jax
import numpy as np
import pytest
from marks import slow

from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, DistillSpec, distill_objective
from bertjax.losses import AUX, CHOICES, CLASSIFICATION, MULTI_LABEL, PRETRAINING, REGRESSION, SPANS, TOKENS
from bertjax.model.config import BertConfig

RNG = np.random.default_rng(0)
B, S, P, V, H, L, D, WIDER = 4, 6, 3, 11, 2, 3, 8, 12
LENGTHS = np.array([6, 4, 1, 0])
MASK = (np.arange(S) < LENGTHS[:, None]).astype(np.int32)
STUDENT = BertConfig(vocab_size=V, num_layers=L, width=D, num_heads=H, mlp_dim=8)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def distill_losses(base, outputs, teacher, batch, *, temperature=1.0, projection=False, student=STUDENT, **factors):
    """Returns {name: sum / weight} of the objective, after a check that its weights depend on the batch alone."""
    width = types.SimpleNamespace(width=WIDER if projection else D)
    spec = DistillSpec(
        dict.fromkeys((*HIDDEN_LOSSES, *OUTPUT_LOSSES), 0.0) | factors, temperature, tuple(range(L)), projection
    )
    objective = distill_objective(base, spec, types.SimpleNamespace(config=width), student)
    sums = jax.jit(objective.losses)(outputs, {**batch, 'teacher': teacher})
    weights = objective.weights(batch)
    assert weights.keys() == {name for name in sums if name.endswith('_loss')} <= objective.factors.keys()
    for name, weight in weights.items():
        assert float(weight) == float(sums[name][1])
    return {name: float(total) / float(weight) for name, (total, weight) in sums.items()}


@pytest.mark.parametrize('temperature', [1.0, 2.0, 10.0])
def test_soft_targets_of_masked_positions_equal_torch(torch, temperature):
    ours, theirs, weights = 3 * draw(B, P, V), 3 * draw(B, P, V), np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    batch = {'masked_weights': weights.astype(np.float32), 'attention_mask': MASK}
    losses = distill_losses(
        PRETRAINING, {'mlm_logits': ours}, {'mlm_logits': theirs}, batch, temperature=temperature, soft=5.0
    )
    student, teacher = (torch.tensor(x[weights > 0]).double() / temperature for x in (ours, theirs))
    kl = torch.nn.KLDivLoss(reduction='batchmean')(student.log_softmax(-1), teacher.softmax(-1)) * temperature**2
    assert losses == {'soft_loss': pytest.approx(kl.item(), rel=1e-5)}


def kl(ours, theirs, temperature):
    """Returns T² KL(teacher, student) over the last dimension, in float64; `ours` are the student's logits."""
    p, q = (np.exp((x := y.astype(np.float64) / temperature) - x.max(-1, keepdims=True)) for y in (theirs, ours))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return temperature**2 * (p * np.log(p / q)).sum(-1)


def test_soft_targets_of_every_head_equal_the_formula():
    T, rows = 2.0, np.array([1, 0.5, 1, 0], np.float32)
    batch = {'weights': rows, 'attention_mask': MASK, 'token_weights': (MASK * (np.arange(S) % 2)).astype(np.float32)}
    mean = lambda x, weights=rows: (x * weights).sum() / weights.sum()  # noqa: E731
    soft = lambda base, name, ours, theirs, **more: distill_losses(  # noqa: E731
        base, {name: ours}, {name: theirs}, {**batch, **more}, temperature=T, soft=1.0
    )['soft_loss']
    a, b = draw(B, 3), draw(B, 3)
    assert soft(CLASSIFICATION, 'logits', a, b) == pytest.approx(mean(kl(a, b, T)), rel=1e-5)
    both = (np.stack([x, 0 * x], -1) for x in (a, b))
    assert soft(MULTI_LABEL, 'logits', a, b) == pytest.approx(mean(kl(*both, T).mean(1)), rel=1e-5)
    squares = np.square(a[:, :1].astype(np.float64) - b[:, :1])[:, 0]
    assert soft(REGRESSION, 'logits', a[:, :1], b[:, :1]) == pytest.approx(mean(squares), rel=1e-5)
    endings = np.ones((B, 3, S), np.int32)
    endings[0, 2] = 0  # The first row has only two endings.
    choices = np.array([kl(a[0, :2], b[0, :2], T), *kl(a[1:], b[1:], T)])
    assert soft(CHOICES, 'logits', a, b, attention_mask=endings) == pytest.approx(mean(choices), rel=1e-5)
    a, b = draw(B, S, 3), draw(B, S, 3)
    tokens = mean(kl(a, b, T), batch['token_weights'])
    assert soft(TOKENS, 'token_logits', a, b) == pytest.approx(tokens, rel=1e-5)
    names, ours, theirs = ('start_logits', 'end_logits'), draw(2, B, S), draw(2, B, S)
    losses = distill_losses(SPANS, dict(zip(names, ours, strict=True)), dict(zip(names, theirs, strict=True)), batch,
                            temperature=T, soft=1.0)  # fmt: skip
    spans = [np.mean([kl(ours[e, i, :n], theirs[e, i, :n], T) for e in (0, 1)]) for i, n in enumerate(LENGTHS[:3])]
    assert losses['soft_loss'] == pytest.approx(mean(np.array([*spans, 0])), rel=1e-5)


def test_the_label_loss_uses_only_labeled_rows():
    ours, labels = draw(B, 3), np.array([0, 2, 1, 1], np.int32)
    batch = {'weights': np.ones(B, np.float32), 'labels': labels, 'attention_mask': MASK}
    labeled = np.array([1, 0, 1, 0], np.float32)
    outputs = {'logits': ours}
    losses = distill_losses(CLASSIFICATION, outputs, outputs, {**batch, 'labelled': labeled}, soft=1.0, hard=1.0)
    log = ours - np.log(np.exp(ours.astype(np.float64)).sum(1, keepdims=True))
    assert losses['label_loss'] == pytest.approx(-(log[[0, 2], labels[[0, 2]]]).mean(), rel=1e-5)
    assert losses['soft_loss'] == pytest.approx(0, abs=1e-6)
    assert losses['accuracy'] == (ours.argmax(1) == labels)[[0, 2]].mean()


@pytest.mark.parametrize('projected', [True, *slow(False)])
def test_losses_of_embeddings_hidden_states_and_the_last_cosine_equal_torch(torch, projected):
    width = WIDER if projected else D
    ours, theirs = draw(L + 1, B, S, D), draw(L + 2, B, S, width)
    kernel, bias = draw(D, width), draw(width)
    outputs, parts = (
        {'hidden': ours, AUX: {'projection': {'kernel': kernel, 'bias': bias}}},
        HIDDEN_LOSSES[:2] + HIDDEN_LOSSES[3:],
    )
    batch = {'attention_mask': MASK}
    factors = dict.fromkeys(parts, 1.0)
    losses = distill_losses(TOKENS, outputs, {'hidden': theirs}, batch, projection=projected, **factors)
    real = torch.tensor(MASK > 0)
    student, teacher = (torch.tensor(x).double()[:, real] for x in (ours, theirs))  # [layers, tokens, width]
    if projected:
        fit = torch.nn.Linear(D, width).double()
        fit.weight.data, fit.bias.data = torch.tensor(kernel).double().T, torch.tensor(bias).double()
        student = fit(student)
    mse = torch.nn.MSELoss()
    cosine = torch.nn.CosineEmbeddingLoss()(student[-1], teacher[-1], torch.ones(len(student[-1])))
    assert losses == {
        'embeddings_loss': pytest.approx(mse(student[0], teacher[0]).item(), rel=1e-4),
        'hidden_loss': pytest.approx(sum(mse(student[i + 1], teacher[i + 1]).item() for i in range(L)), rel=1e-4),
        'cosine_loss': pytest.approx(cosine.item(), rel=1e-4),
    }


@pytest.mark.parametrize('causal', [False, True])
def test_the_loss_of_attention_scores_covers_visible_tokens(torch, causal):
    ours, theirs = draw(L, B, H, S, S), draw(L, B, H, S, S)
    student = BertConfig(vocab_size=V, num_layers=L, width=D, num_heads=H, mlp_dim=8, causal=causal)
    batch = {'attention_mask': MASK}
    losses = distill_losses(TOKENS, {'scores': ours}, {'scores': theirs}, batch, student=student, attention=1.0)
    visible = [[q < n and k < n and (not causal or k <= q) for q in range(S) for k in range(S)] for n in LENGTHS]
    pairs = torch.tensor(np.array(visible).reshape(B, S, S))
    expected = 0.0
    for layer in range(L):  # All heads have the same pairs.
        student_scores, teacher_scores = (torch.tensor(x[layer]).double().movedim(1, -1)[pairs] for x in (ours, theirs))
        expected += torch.nn.MSELoss()(student_scores, teacher_scores).item()
    assert losses == {'attention_loss': pytest.approx(expected, rel=1e-4)}
