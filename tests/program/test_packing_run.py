"""config.packing in pre-training: training, evaluation, resuming and refused changes."""

import pathlib
import shutil

import numpy as np
import pytest
from running import RUN, Program, copy_workdir, examples_of, rows

import bertjax
from bertjax.data.features import INPUTS

PACKED = ('--config.packing=True', '--config.seq_len=48', '--config.max_predictions=8', *RUN, '--config.steps=8')
NO_HELDOUT = '--config.corpus_options.heldout=0'  # nothing is held out, so only the training step is compiled


@pytest.fixture(scope='module')
def packed(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('packed') / 'run'
    out = program.run(f'--workdir={folder}', *PACKED, NO_HELDOUT).stdout
    assert 'phase 0: 8 steps of 8 x 48 packed' in out and ' per packed row, ' in out and '% unpacked)' in out
    return folder


def test_rows_and_sequences_are_counted_separately(packed: pathlib.Path):
    assert [row['first'] for row in rows(packed / 'ledger.jsonl')] == list(range(0, 64, 8))
    for row in rows(packed / 'metrics.jsonl', 'train'):
        assert row['sequences_per_s'] * row['seconds_per_step'] > 8.01  # more sequences than the 8 rows
    assert 'several examples in a row' in (packed / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')


def test_apply_reads_packed_rows(packed: pathlib.Path):
    bert = bertjax.load(packed)
    batch = examples_of(packed, 'train').batch(np.arange(8))
    names = (*INPUTS, 'masked_positions', 'sequence_ids', 'position_ids', 'cls_positions')
    expected = bert._model.module.apply({'params': bert.params}, *(batch[name] for name in names))
    outputs = bert.apply(bert.params, batch)
    for name, x in expected.items():
        np.testing.assert_allclose(outputs[name], x[..., : outputs[name].shape[-1]], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_resumed_within_a_block_ends_in_the_same_bits(
    program: Program, packed: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(packed, tmp_path / 'run')
    shutil.rmtree(workdir / 'checkpoints' / '8')
    for path in (workdir / 'store' / 'plans').glob('packing-*'):
        path.unlink()
    out = program.run(f'--workdir={workdir}', *PACKED, NO_HELDOUT).stdout
    assert 'continuing at step 4 of 8' in out
    for name in ('ledger.jsonl', 'config.json', 'export/hf/model.safetensors'):
        assert (workdir / name).read_bytes() == (packed / name).read_bytes(), name
    losses = ([row['loss'] for row in rows(folder / 'metrics.jsonl', 'train')] for folder in (workdir, packed))
    assert next(losses) == next(losses)


def test_evaluation_rows_are_not_packed(trained: pathlib.Path):
    assert 'sequence_ids' in examples_of(trained, 'train', packing=True).batch(np.arange(8))
    batches = [examples_of(trained, 'heldout', packing=packing).batch(np.arange(32)) for packing in (True, False)]
    np.testing.assert_equal(*batches)


def test_packing_cannot_change_during_a_run(program: Program, packed: pathlib.Path):
    before = (packed / 'ledger.jsonl').read_bytes()
    line = program.error(f'--workdir={packed}', *PACKED, NO_HELDOUT, '--config.packing=False', '--config.steps=12')
    assert line.startswith('error: config.packing: found False, expected True as in the checkpoint in ')
    assert (packed / 'ledger.jsonl').read_bytes() == before


def test_too_few_predictions_for_a_full_row_are_refused(program: Program, tmp_path: pathlib.Path):
    line = program.error(f'--workdir={tmp_path}', *PACKED, '--config.max_predictions=6')
    assert line.startswith('error: config.max_predictions: found 6, expected at least 7 with config.packing: 15% of ')


@pytest.mark.slow
def test_the_page_shows_the_packed_rows(program: Program, packed: pathlib.Path, tmp_path: pathlib.Path):
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    workdir = copy_workdir(packed, tmp_path / 'run')
    program.run(f'--workdir={workdir}', *PACKED, NO_HELDOUT, '--config.run=report')
    page = (workdir / 'report.html').read_text(encoding='utf-8')
    assert 'training rows, each of several examples' in page and 'row 0 · examples in it: ' in page
    assert 'B follows A' in page
