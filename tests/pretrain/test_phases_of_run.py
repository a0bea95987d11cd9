"""Tests the phases of a pre-training run."""

import pathlib

import jax
import pytest

from bertjax.config.recipes import phase, pretraining_config
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain import run
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.step import make_eval_step


@pytest.mark.slow
def test_phases_of_equal_shape_are_evaluated_on_the_same_masks_by_one_program(tmp_path: pathlib.Path, monkeypatch):
    (tmp_path / 'text.txt').write_text('\n\n'.join(f'{"abcdefgh"[i % 8]}{i % 7} stop. And {i}.' for i in range(80)))
    phases = (phase(steps='50%'), phase(steps='50%', learning_rate=1e-4))
    config = pretraining_config('tiny', phases=phases, corpus=str(tmp_path / 'text.txt'), seq_len=32, batch_size=8)
    config.corpus_options.heldout, config.corpus_options.workers, config.vocab.size, config.pair_plans = 0.3, 1, 60, 2
    config.model.update(width=8, mlp_dim=16, num_layers=1, num_heads=1)
    traces = []

    def make_counting_step(*arguments):
        step = make_eval_step(*arguments)
        return lambda *arguments: traces.append(1) or step(*arguments)

    monkeypatch.setattr(run, 'make_eval_step', make_counting_step)
    settings = pretraining_settings(config)
    training = run.Pretraining(settings, tmp_path / 'run', make_mesh(settings.mesh_axes, jax.devices()[:1]))
    params = training.init_state().params
    losses = [phase.evaluator.run(params)[1] for phase in training.phases()]
    assert losses[0] == losses[1] and losses[0] is not None
    assert len(traces) == 1
