"""Held-out evaluation gives the same numbers for any batch size and mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_fakes import RandomExamples

from bertjax.losses import PRETRAINING
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import replicated
from bertjax.training.evaluate import Evaluator
from bertjax.training.step import make_eval_step

COUNT = 37


def mesh_of(data=1, fsdp=1, tensor=1):
    return make_mesh({'data': data, 'fsdp': fsdp, 'tensor': tensor}, jax.devices()[: data * fsdp * tensor])


@jax.jit
def exact_sums(params, batch):
    """Returns sums of integers that differ for every row and weight; they are exact in float32."""
    weights = batch['masked_weights']
    return {
        'mlm_loss': ((batch['masked_ids'] * weights).sum() * params, weights.sum()),
        'nsp_loss': ((batch['nsp_labels'] * batch['nsp_weights']).sum(), batch['nsp_weights'].sum()),
        'tokens': ((batch['input_ids'] * batch['attention_mask']).sum(), batch['attention_mask'].sum()),
    }


@pytest.fixture(scope='module')
def expected():
    rows = RandomExamples().batch(np.arange(COUNT))
    return {
        'mlm_loss': (2 * (rows['masked_ids'] * rows['masked_weights']).sum(), rows['masked_weights'].sum()),
        'nsp_loss': (rows['nsp_labels'].sum(), COUNT),
        'tokens': (rows['input_ids'].sum(), rows['attention_mask'].sum()),
    }


@pytest.mark.parametrize(
    ('batch_size', 'mesh'),
    [
        (1, {}),
        (8, {}),
        (16, {}),
        (37, {}),
        (64, {}),
        (8, {'data': 8}),
        (16, {'fsdp': 4, 'tensor': 2}),
        (64, {'fsdp': 8}),
    ],
)
def test_every_example_counts_once_and_padding_does_not(expected, batch_size, mesh):
    evaluator = Evaluator(exact_sums, RandomExamples(), count=COUNT, batch_size=batch_size, mesh=mesh_of(**mesh))
    assert evaluator.sums(jnp.float32(2)) == expected
    assert evaluator.sums(jnp.float32(2)) == expected  # a second evaluation gives the same sums


def test_the_last_batch_is_filled_with_rows_of_weight_zero():
    *_, last = Evaluator(exact_sums, RandomExamples(), count=COUNT, batch_size=16, mesh=mesh_of(data=8)).batches()
    real = RandomExamples().batch(np.arange(32, 37))
    for name, x in last.items():
        assert len(x) == 16
        np.testing.assert_array_equal(x[:5], real[name])
        assert not np.asarray(x[5:]).any(), name


def test_examples_beyond_the_count_are_not_created():
    created = []

    class Recording(RandomExamples):
        def batch(self, indices):
            created.extend(np.asarray(indices).tolist())
            return super().batch(indices)

    Evaluator(exact_sums, Recording(), count=COUNT, batch_size=16, mesh=mesh_of()).sums(jnp.float32(1))
    assert set(created) == set(range(COUNT))


@pytest.mark.slow
def test_the_real_model_gives_the_same_sums_on_a_mesh(plain_run, fresh):
    results = []
    for batch_size, mesh in ((64, {}), (16, {'data': 8})):
        mesh = mesh_of(**mesh)
        step = jax.jit(make_eval_step(plain_run.setup.module, PRETRAINING))
        params = jax.device_put(fresh.params, replicated(mesh))
        evaluator = Evaluator(step, RandomExamples(), count=COUNT, batch_size=batch_size, mesh=mesh)
        results.append(evaluator.sums(params))
    one, eight = results
    assert set(one) == {'mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy'}
    for name, (value, weight) in one.items():
        np.testing.assert_allclose(eight[name][0], value, rtol=1e-6, err_msg=name)
        assert eight[name][1] == weight
    assert one['mlm_loss'][0] / one['mlm_loss'][1] == pytest.approx(np.log(200), rel=0.02)


@pytest.mark.slow
def test_evaluation_has_no_dropout(dropout_run, fresh):
    """Evaluation needs no dropout key and gives the same numbers twice."""
    step = jax.jit(make_eval_step(dropout_run.setup.module, PRETRAINING))
    evaluator = Evaluator(step, RandomExamples(), count=8, batch_size=8, mesh=mesh_of())
    assert evaluator.sums(fresh.params) == evaluator.sums(fresh.params)
