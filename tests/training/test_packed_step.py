"""Training on packed rows equals training on their examples in separate rows."""

import itertools

import jax
import numpy as np
import pytest
from data_fakes import FakeVocabulary, MemorySplit, synthetic_split
from train_fakes import MESH_RECIPE, NO_DROPOUT, VOCABULARY, B, Run, host, loss_of, tiny_config

from bertjax.data.masking import MaskOptions
from bertjax.data.packing import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, DistillSpec, distill_objective
from bertjax.losses import PACKED_PRETRAINING, PRETRAINING
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.training.step import make_eval_step, make_forward

S, P = 48, 8
SHAPE = {'seq_len': S, 'max_predictions': P}
MODEL = {**NO_DROPOUT, 'max_positions': S}


@pytest.fixture(scope='module')
def batches():
    """(packed rows 0 to B - 1, their examples in separate rows, the packed row of each example)."""
    split = synthetic_split(documents=60, sentences=3, mean=6)
    bounds = [split.sentence_offsets[split.document_offsets[i] : split.document_offsets[i + 1] + 1] for i in range(60)]
    text = [[split.tokens(a, b - a) % 180 + 10 for a, b in itertools.pairwise(x)] for x in bounds]
    examples = PretrainingExamples(
        MemorySplit(text), FakeVocabulary(VOCABULARY), **SHAPE, pairs=PairOptions(plans=1), masking=MaskOptions(),
        seed=0, phase=0, cache_dir=None,
    )  # fmt: skip
    packed = PackedExamples(examples)
    row_of_example, numbers, _ = packed.locate(np.arange(B))
    assert len(numbers) > 1.4 * B
    return packed.batch(np.arange(B)), examples.batch(numbers), row_of_example


def model_of(**changes):
    fields = dict(vocab_size=VOCABULARY, num_layers=2, width=32, num_heads=4, mlp_dim=64)
    return BertForPreTraining(BertConfig(**{**fields, **MODEL, **changes}))


def params_of(model, draw_params, seed=0):
    inputs = [np.zeros((1, 1), np.int32)] * 4
    return draw_params(lambda key: model.init(key, *inputs)['params'], 0.2, seed)


OTHERS = {'scan_layers': False, 'causal': True, 'pre_norm': True, 'remat': 'full'}


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, OTHERS], ids=str)
def test_losses_and_gradients_agree_with_separate_rows(batches, draw_params, changes):
    packed, separate, row_of_example = batches
    model = model_of(**changes)
    params = params_of(model, draw_params)

    def loss(params, objective, batch):
        outputs = make_forward(model, objective)(params, batch)
        sums, weights = objective.losses(outputs, batch), objective.weights(batch)
        return sum(sums[name][0] / weight for name, weight in weights.items()), (sums, outputs)

    results = []
    for objective, batch in ((PACKED_PRETRAINING, packed), (PRETRAINING, separate)):
        step = jax.jit(jax.value_and_grad(lambda p, x, o=objective: loss(p, o, x), has_aux=True))
        results.append(host(step(params, batch)))
    ((total, (sums, outputs)), grads), ((expected_total, (expected, expected_outputs)), expected_grads) = results
    np.testing.assert_allclose(total, expected_total, rtol=1e-6)
    for name, (value, weight) in expected.items():
        assert sums[name][1] == weight > 0
        np.testing.assert_allclose(sums[name][0], value, rtol=2e-6, err_msg=name)
    assert sums['mlm_accuracy'][0] == expected['mlm_accuracy'][0] and sums['nsp_loss'][1] == len(row_of_example)
    for x, y in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * max(np.abs(y).max(), 1e-3))
    for name, weights, logits in (
        ('mlm_logits', 'masked_weights', expected_outputs['mlm_logits'][separate['masked_weights'] > 0]),
        ('nsp_logits', 'nsp_weights', expected_outputs['nsp_logits']),
    ):
        np.testing.assert_allclose(outputs[name][packed[weights] > 0], logits, rtol=1e-5, atol=1e-5)


def test_examples_of_a_row_do_not_see_each_other(batches, draw_params):
    packed, _, _ = batches
    model = model_of()
    forward, params = jax.jit(make_forward(model, PACKED_PRETRAINING)), params_of(model, draw_params)
    other = {**packed, 'input_ids': np.where(packed['sequence_ids'] == 2, 17, packed['input_ids'])}
    before, after = (host(forward(params, batch)['nsp_logits']) for batch in (packed, other))
    changed = (before != after).any(-1)  # [B, E]
    assert changed[packed['nsp_weights'][:, 1] > 0, 1].all() and not changed[:, 0].any() and not changed[:, 2:].any()


@pytest.mark.slow
def test_distillation_losses_agree_with_separate_rows(batches, draw_params):
    packed, separate, _ = batches
    spec = DistillSpec(dict.fromkeys((*HIDDEN_LOSSES, *OUTPUT_LOSSES), 1.0), 2.0, (0, 1), False)
    model, sums = model_of(), []
    student, teacher = params_of(model, draw_params), params_of(model, draw_params, seed=1)
    for plain, batch in ((PACKED_PRETRAINING, packed), (PRETRAINING, separate)):
        objective = distill_objective(plain, spec, model, model.config)
        sums.append(host(jax.jit(make_eval_step(model, objective))(student, batch, teacher)))
    assert sums[1].keys() >= {f'{part}_loss' for part in (*HIDDEN_LOSSES, 'soft')}
    for name, (value, weight) in sums[1].items():
        np.testing.assert_allclose(sums[0][name][1], weight, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(sums[0][name][0], value, rtol=1e-5, err_msg=name)


def _train(packed, fresh=None, **changes):
    """Returns the fresh state on the host and the metrics of three steps on the packed rows."""
    run = Run(tiny_config(model=MODEL, packing=True, **SHAPE, **MESH_RECIPE, **changes))
    fresh = host(run.init()) if fresh is None else fresh
    state, rows = run.place(fresh), []
    for _ in range(3):
        state, metrics = run.compiled(state, run.put(packed))
        rows.append(host(metrics))
    return fresh, rows


@pytest.mark.slow
def test_packed_rows_agree_on_eight_devices_and_in_microbatches(batches):
    packed, _, row_of_example = batches
    fresh, expected_rows = _train(packed)
    _, rows = _train(packed, fresh, mesh={'data': 1, 'fsdp': 4, 'tensor': 2}, grad_accum_steps=4)
    for row, expected in zip(rows, expected_rows, strict=True):
        np.testing.assert_allclose(loss_of(row), loss_of(expected), rtol=1e-5)
        np.testing.assert_allclose(row['scalars']['grad_norm'], expected['scalars']['grad_norm'], rtol=1e-4)
        assert row['scalars']['sequences'] == len(row_of_example)
    assert loss_of(expected_rows[2]) < loss_of(expected_rows[0])
