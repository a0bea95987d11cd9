"""config.ema_decay: every verb and every later run uses the average of the weights, not the last weights.

test_packed_tasks.py has a sweep with averages.
"""

import pathlib
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from running import GLUE, NO_SAVES, ONE_LENGTH, RUN, TUNE, Program, results, rows

import bertjax
from bertjax.api import Bert
from bertjax.losses import AUX
from bertjax.model.stacking import stack_layers
from bertjax.training.state import without_aux

pytestmark = pytest.mark.slow
AVERAGE = '--config.ema_decay=0.9'


def assert_has_average(model: Bert, state: dict) -> None:
    stacked = lambda params: params if 'layers' in params['encoder'] else stack_layers(params)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, stacked(jax.device_get(model.params)), stacked(state['ema']))


def saved_state(workdir: pathlib.Path, step: int) -> dict:
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.device_get(checkpointer.restore((workdir / 'checkpoints' / str(step) / 'state').resolve()))


def test_a_pretraining_is_evaluated_exported_and_continued_with_its_average(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = tmp_path / 'run'
    program.run(f'--workdir={workdir}', *RUN, AVERAGE, NO_SAVES)
    state = saved_state(workdir, 24)
    assert_has_average(bertjax.load(workdir), state)
    kernel = lambda tree: np.asarray(tree['mlm']['dense']['kernel'])  # noqa: E731
    assert np.abs(kernel(state['ema']) - kernel(state['params'])).max() > 1e-4
    # The average does not change the training, but it changes the evaluation.
    losses = lambda path, split: [row['loss'] for row in rows(path / 'metrics.jsonl', split)]  # noqa: E731
    assert losses(workdir, 'train') == pytest.approx(losses(trained, 'train'), rel=1e-4)
    heldout = losses(workdir, 'heldout')
    assert abs(heldout[-1] - losses(trained, 'heldout')[-1]) > 1e-3
    # A warm start begins with the loss of the last evaluation.
    program.run(f'--workdir={tmp_path / "next"}', *RUN, f'--config.init={workdir}', '--config.steps=1')
    assert losses(tmp_path / 'next', 'heldout')[0] == pytest.approx(heldout[-1], rel=1e-5)
    # Without the export, the checkpoint gives the same weights.
    tensors = (workdir / 'export/hf/model.safetensors').read_bytes()
    shutil.rmtree(workdir / 'export')
    assert_has_average(bertjax.load(workdir), state)
    program.run(f'--workdir={workdir}', '--config.run=export')
    assert (workdir / 'export/hf/model.safetensors').read_bytes() == tensors
    assert 'config.ema_decay' in program.error(f'--workdir={workdir}', *RUN, '--config.steps=30')


def test_a_finetuning_is_evaluated_and_exported_with_its_average(
    program: Program, tune: tuple[str, ...], tmp_path: pathlib.Path
):
    flags = (AVERAGE, ONE_LENGTH, '--config.use_checkpoint=best')
    out = program.run(f'--workdir={tmp_path}', *tune, *flags, **GLUE).stdout
    assert 'can choose only the last step' not in out
    finished = results(tmp_path)['splits']
    dev = rows(tmp_path / 'metrics.jsonl', 'dev')
    best = max(dev, key=lambda row: row['accuracy'])
    assert finished['dev']['accuracy'] == best['accuracy']
    state = saved_state(tmp_path, best['step'])
    assert_has_average(bertjax.load(tmp_path), state)
    evaluate = ('--config.run=evaluate', f'--config.step={best["step"]}')
    program.run(f'--workdir={tmp_path}', *evaluate, **GLUE)
    assert results(tmp_path)['splits'] == finished
    tensors = (tmp_path / 'export/hf/model.safetensors').read_bytes()
    program.run(f'--workdir={tmp_path}', '--config.run=export', f'--config.step={best["step"]}', **GLUE)
    assert (tmp_path / 'export/hf/model.safetensors').read_bytes() == tensors
    shutil.rmtree(tmp_path / 'export')
    assert_has_average(bertjax.load(tmp_path, step=best['step']), state)


def test_a_student_is_exported_with_its_average(
    program: Program, tuned: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path
):
    """There are two stages; the parameters of the losses are averaged but not exported."""
    losses = ('--config.distill.hidden=1', '--config.distill.projection=true', '--config.distill.intermediate=50%')
    arguments = (
        f'--config.data={rte}',
        f'--config.distill.teacher={tuned}',
        *TUNE,
        '--config.epochs=2',
        ONE_LENGTH,
        *losses,
    )
    program.run(f'--workdir={tmp_path}', *arguments, AVERAGE, recipe='configs/distilbert.py:glue:rte', small=False)
    state = saved_state(tmp_path, 12)
    assert AUX in state['ema'] and AUX not in bertjax.load(tmp_path).params
    assert_has_average(bertjax.load(tmp_path), {'ema': without_aux(state['ema'])})
