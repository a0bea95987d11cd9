"""Tests train steps with a teacher, on one device and on eight."""

import functools

import jax
import numpy as np
import pytest
from marks import slow
from train_fakes import MESH_RECIPE, NO_DROPOUT, VOCABULARY, B, RandomExamples, host, tiny_config

from bertjax.data.loader import global_arrays, make_numbered_batch
from bertjax.distill.objective import (
    HIDDEN_LOSSES,
    OUTPUT_LOSSES,
    DistillSpec,
    distill_objective,
    evenly_spaced_layers,
    uniform_layers,
)
from bertjax.losses import AUX, PRETRAINING, with_z_loss
from bertjax.metrics.rows import distillation_values
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params
from bertjax.optim.masks import path_names
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.parallel.rules import mesh_axes
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.compiled_steps import StepLowering, compile_steps
from bertjax.training.distillation import Distillation, DistillationStage
from bertjax.training.phase import TrainStep
from bertjax.training.state import abstract_state, put_like

WIDER = BertConfig(
    vocab_size=VOCABULARY, num_layers=4, width=48, num_heads=4, mlp_dim=64, max_positions=16, **NO_DROPOUT
)


def test_layers_for_initialization_and_distillation():
    assert evenly_spaced_layers(6, 12) == (0, 2, 4, 7, 9, 11)  # The layers of DistilBERT.
    assert [evenly_spaced_layers(n, 6) for n in (1, 2, 3, 6)] == [(0,), (0, 5), (0, 3, 5), (0, 1, 2, 3, 4, 5)]
    assert uniform_layers(4, 12) == (2, 5, 8, 11) and uniform_layers(6, 12) == (1, 3, 5, 7, 9, 11)  # TinyBERT.
    assert uniform_layers(3, 4) == (0, 1, 3)


@pytest.mark.parametrize('hard', [2.0, *slow(0.0)])
def test_the_factor_of_the_z_loss_does_not_depend_on_that_of_the_labels(hard):
    student = BertConfig(vocab_size=VOCABULARY, num_layers=2, width=32, num_heads=4, mlp_dim=64, max_positions=16)
    factors = {'soft': 5.0} | ({'hard': hard} if hard else {})
    objective = distill_objective(PRETRAINING, DistillSpec(factors, 2.0, (), False), BertForPreTraining(WIDER), student)
    objective = with_z_loss(objective, 1e-4)
    assert objective.factors['z_loss'] == 1e-4 and objective.factors.get('mlm_loss', 0.0) == hard
    outputs = {'mlm_logits': np.zeros((1, 2, 4)), 'nsp_logits': np.zeros((1, 2))}
    batch = {'masked_weights': np.ones((1, 2)), 'masked_ids': np.zeros((1, 2), int), 'teacher': outputs}
    batch |= {'nsp_labels': np.zeros(1, int), 'nsp_weights': np.ones(1), 'augmented': np.zeros(1)}
    total, weight = jax.jit(objective.losses)(outputs, batch)['z_loss']
    assert total / weight == pytest.approx(np.log(4) ** 2)


def test_the_attention_loss_counts_only_pairs_inside_the_window():
    student = BertConfig(vocab_size=VOCABULARY, num_layers=2, attention_window=2, global_every=2)
    objective = distill_objective(
        PRETRAINING, DistillSpec({'attention': 1.0}, 1.0, (0, 1), False), BertForPreTraining(WIDER), student
    )
    batch = {'attention_mask': np.array([[1, 1, 1, 0]]), 'teacher': {'scores': np.zeros((2, 1, 4, 4, 4))}}
    # The first block attends to all 9 pairs of tokens, the second one to 7: not from token 0 to 2 and back.
    total, weight = jax.jit(objective.losses)({'scores': np.ones((2, 1, 4, 4, 4))}, batch)['attention_loss']
    assert (total, weight) == (16, 8) and objective.weights(batch)['attention_loss'] == 8


class DistillationRun:
    """A student of two layers and width 32, a teacher of four layers and width 48, and all distillation losses."""

    def __init__(self, draw_params, **changes):
        config = tiny_config(**{**MESH_RECIPE, **changes})
        self.mesh = make_mesh(sizes := mesh_axes(config.mesh), jax.devices()[: int(np.prod(list(sizes.values())))])
        settings, student = pretraining_settings(config), BertConfig(vocab_size=VOCABULARY, **config.model)
        spec = DistillSpec(dict.fromkeys((*HIDDEN_LOSSES, *OUTPUT_LOSSES), 1.0) | {'soft': 5.0}, 2.0, (1, 3), True)
        model = BertForPreTraining(WIDER)
        init = lambda key: init_params(model, key)  # noqa: E731
        with mesh_context(self.mesh):
            abstract = abstract_state(init, self.mesh)
        stage = DistillationStage(lambda objective: distill_objective(objective, spec, model, student))
        distillation = Distillation([stage], (abstract,))
        self.setup = build_pretraining_setup(settings, student, self.mesh, distillation)
        self.phase = settings.resolve_phases(config.steps)[0]
        self.batches = self.phase.batches
        self.teacher_on_host = draw_params(init, 0.1, 3)
        self.teacher = put_like(self.teacher_on_host, abstract)

    def steps(self, state, count):
        programs = compile_steps(self.setup, self.phase, self.batches)
        numbers = (self.phase.make_schedule(self.phase.learning_rate), np.uint32(0))
        step = TrainStep(programs, *jax.device_put(numbers, replicated(self.mesh)), teacher=(self.teacher,))
        state = jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), state, self.setup.state)
        values, sharding = [], batch_sharding(self.mesh)
        for i in range(count):
            rows = RandomExamples().batch(np.arange(B) + B * i)
            state, metrics = step(state, make_numbered_batch(B * i, global_arrays(rows, sharding, B), sharding, B))
            values.append(distillation_values(jax.device_get(metrics['sums']), self.setup.objective.factors))
        return host(state), values


@pytest.fixture(scope='module')
def one_device(draw_params):
    run = DistillationRun(draw_params, model=NO_DROPOUT)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), run.setup.state)
    first = zeros.replace(params=draw_params(lambda key: run.setup.init(key).params, 0.1, 3))
    return run, first, *run.steps(first, 4)


@pytest.mark.slow
def test_the_teacher_is_neither_in_the_state_nor_a_constant(one_device):
    run, first, last, _ = one_device
    plain = build_pretraining_setup(pretraining_settings(tiny_config()), run.setup.module.config, run.mesh).state
    aux = {AUX: {'projection': {'kernel': (32, 48), 'bias': (48,)}}}
    shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)  # noqa: E731
    assert shapes(last.params) == {**shapes(plain.params), **aux}
    assert shapes(last.opt_state[1].mu) == shapes(last.opt_state[1].nu) == shapes(last.params)
    jax.tree.map(np.testing.assert_array_equal, host(run.teacher), run.teacher_on_host)
    for path, x in jax.tree_util.tree_flatten_with_path(last.params)[0]:  # Every parameter is trained.
        before = functools.reduce(lambda tree, name: tree[name], path_names(path), first.params)
        assert (x != before).any(), path_names(path)
    lowered = StepLowering(run.setup, run.phase).step(run.batches[16])
    schedule = run.phase.make_schedule(0.0)
    arguments = (first, run.teacher, RandomExamples().batch(np.arange(2)), 'first', schedule, 'seed')
    assert len(jax.tree.leaves(lowered.args_info)) == len(jax.tree.leaves(arguments))
    widest = max(len(line) for line in lowered.as_text().splitlines() if 'stablehlo.constant' in line)
    assert widest < 1000


@pytest.mark.slow
def test_the_loss_is_the_weighted_sum_of_its_parts_and_decreases(one_device):
    _, _, _, values = one_device
    parts = [f'{part}_loss' for part in (*HIDDEN_LOSSES, 'soft')] + ['mlm_loss', 'nsp_loss']
    for row in values:
        assert row['loss'] == pytest.approx(sum(row[name] * (5 if name == 'soft_loss' else 1) for name in parts))
    assert values[-1]['loss'] < values[0]['loss']


@pytest.mark.parametrize(
    'changes',
    [
        {'mesh': {'data': 1, 'fsdp': 4, 'tensor': 2}},
        {'mesh': {'data': 4}, 'grad_accum_steps': 2},  # ZeRO-1
    ],
    ids=str,
)
@pytest.mark.slow
def test_eight_devices_and_accumulation_give_the_same_steps(one_device, draw_params, changes):
    _, first, last, values = one_device
    run = DistillationRun(draw_params, model=NO_DROPOUT, **changes)
    split = run.teacher['encoder']['layers']['mlp']['up']['kernel'].sharding.shard_shape((4, 48, 64))
    assert split == ((4, 12, 32) if run.mesh.shape['fsdp'] == 4 else (4, 48, 64))  # The student has the same sharding.
    state, rows = run.steps(first, 4)
    for row, expected in zip(rows, values, strict=True):
        assert row == pytest.approx(expected, rel=2e-4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), state.params, last.params)
