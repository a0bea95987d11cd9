"""Fine-tuning on packed batches: each step has the loss of unpacked rows, even with dropout."""

import json
import pathlib
from unittest import mock

import numpy as np
import pytest
from golden_runs import rewind, write_data
from running import GLUE, Program, copy_workdir, results, rows

from bertjax.model.heads import BertForTask
from bertjax.workdir.lock import TRIALS

SHORT = (
    '--config.seq_len=32',
    '--config.max_padded_lengths=2',
    '--config.batch_size=8',
    '--config.steps=5',
    '--config.learning_rate=1e-3',
    '--config.log_every=1',
    '--config.eval_every=0',
    '--config.checkpoint_every=3',
    '--config.checkpoint_keep=4',
    '--config.packing=on',
)
NO_EXPORT = '--config.export=False'
AVERAGE = '--config.ema_decay=0.9'  # does not change the losses of training


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('packed')
    write_data(folder)
    return folder


@pytest.fixture(scope='module')
def packed(program: Program, trained: pathlib.Path, data: pathlib.Path):
    """packed(workdir, recipe, files, *changes) -> the printed text."""

    def run(workdir: pathlib.Path, recipe: str, files: str, *changes: str, devices: int = 1) -> str:
        flags = (f'--workdir={workdir}', f'--config.init={trained}', f'--config.data={data / files}', *SHORT)
        return program.run(*flags, *changes, recipe=recipe, small=False, devices=devices).stdout

    return run


@pytest.fixture(scope='module')
def rte_run(packed, tmp_path_factory) -> pathlib.Path:
    """The workdir of an uninterrupted run on RTE, which is evaluated with its average."""
    workdir = tmp_path_factory.mktemp('packed') / 'rte'
    packed(workdir, 'configs/glue.py:rte', 'RTE', AVERAGE)
    return workdir


def losses(workdir: pathlib.Path) -> list[list[float]]:
    train_rows = [row for row in rows(workdir / 'metrics.jsonl') if row['split'] == 'train']
    assert len(train_rows) == 5
    return [[row['loss'], row['grad_norm'], row['param_norm']] for row in train_rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    'recipe, files, changes',
    [
        ('configs/glue.py:rte', 'RTE', ()),
        ('configs/ner.py', 'columns', ()),
        ('configs/swag.py:jsonl', 'choice', ('--config.grad_accum_steps=2',)),
    ],
)
def test_each_step_agrees_with_unpacked_rows(packed, tmp_path: pathlib.Path, recipe, files, changes):
    out = packed(tmp_path / 'packed', recipe, files, NO_EXPORT, *changes)
    assert 'packed: ' in out and 'config.packing=on' in out
    assert json.loads((tmp_path / 'packed' / 'config.json').read_text())['packing'] == 'on'
    clone = BertForTask.clone
    with mock.patch.object(BertForTask, 'clone', lambda self, packing=None, **changes: clone(self, **changes)):
        packed(tmp_path / 'alone', recipe, files, NO_EXPORT, *changes)
    assert_same_losses(tmp_path / 'packed', tmp_path / 'alone')


def probabilities(workdir: pathlib.Path) -> np.ndarray:
    return np.array([[*row['probabilities'].values()] for row in rows(workdir / 'predictions' / 'dev.jsonl')])


def assert_same_losses(one: pathlib.Path, other: pathlib.Path) -> None:
    for mine, theirs in zip(losses(one), losses(other), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


@pytest.mark.slow
def test_a_run_resumed_within_an_epoch_ends_in_the_same_bits(packed, rte_run: pathlib.Path, tmp_path: pathlib.Path):
    stopped = copy_workdir(rte_run, tmp_path / 'stopped')
    rewind(stopped, step=3)
    (stopped / 'config.json').unlink()  # the flags have the packing
    assert 'continuing at step 3 of 5' in packed(stopped, 'configs/glue.py:rte', 'RTE', AVERAGE)
    paths = [workdir / 'export' / 'hf' / 'model.safetensors' for workdir in (rte_run, stopped)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
def test_two_devices_have_the_same_steps(packed, rte_run: pathlib.Path, tmp_path: pathlib.Path):
    packed(tmp_path, 'configs/glue.py:rte', 'RTE', '--config.zero1=on', NO_EXPORT, devices=2)
    assert_same_losses(tmp_path, rte_run)


@pytest.mark.slow
def test_trials_of_a_sweep_are_packed_together(packed, rte_run: pathlib.Path, tmp_path: pathlib.Path):
    """The trial with the seed of the single run has the same losses, and the same predictions with its average."""
    sweep = (AVERAGE, '--config.sweep.seeds=(0,1)', NO_EXPORT, '--config.sweep.together=2')
    assert 'packed: config.packing=on' in packed(tmp_path, 'configs/glue.py:rte', 'RTE', *sweep)
    (tmp_path / 'config.json').unlink()
    assert '2 runs, 2 of them already finished' in packed(tmp_path, 'configs/glue.py:rte', 'RTE', *sweep)
    first, second = sorted((tmp_path / TRIALS).iterdir())
    assert_same_losses(first, rte_run)
    assert losses(second) != losses(first)
    assert results(first)['splits'] == results(rte_run)['splits']
    np.testing.assert_allclose(probabilities(first), probabilities(rte_run), rtol=1e-4)
    assert np.abs(probabilities(second) - probabilities(first)).max() > 1e-3


def test_a_run_keeps_its_packing(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    config = json.loads((tuned / 'config.json').read_text())
    assert config['packing'] == 'off'  # TUNE sets max_padded_lengths
    assert 'not packed: config.max_padded_lengths=2 requires padded rows' in (tuned / 'stdout.txt').read_text()
    workdir = copy_workdir(tuned, tmp_path / 'own')
    arguments = (f'--workdir={workdir}', f'--config.init={config["init"]}', f'--config.data={config["data"]}')
    changes = ('--config.epochs=13', '--config.seq_len=24', '--config.max_padded_lengths=2', '--config.batch_size=16')
    message = program.error(*arguments, *changes, '--config.packing=on', **GLUE)
    assert "config.packing: found 'on', expected 'off', as at the start of the run" in message
