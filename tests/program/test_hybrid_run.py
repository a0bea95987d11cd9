"""Runs with masked and causal rows, and the use of the finished model."""

import pathlib
import shutil

import numpy as np
import pytest
from running import RUN, Program, copy_workdir, examples_of, rows

import bertjax
from bertjax.errors import UserError

SHIFTED = ('--config.model.shifted_predictions=True', '--config.pairs.mode=doc_sentences')
SHIFTED += ('--config.export_formats=orbax', *RUN, '--config.steps=8')
HYBRID = (*SHIFTED, '--config.masking.causal_share=0.5', '--config.packing=True')


@pytest.fixture(scope='module')
def hybrid(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('hybrid') / 'run'
    out = program.run(f'--workdir={folder}', *HYBRID).stdout
    assert '50% of the examples are causal; each token is predicted from the position before it' in out
    return folder


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bits(program: Program, hybrid: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(hybrid, tmp_path / 'run')
    shutil.rmtree(workdir / 'checkpoints' / '8')
    assert 'continuing at step 4 of 8' in program.run(f'--workdir={workdir}', *HYBRID).stdout
    for name in ('ledger.jsonl', 'config.json'):
        assert (workdir / name).read_bytes() == (hybrid / name).read_bytes(), name
    checksums = [(folder / 'export' / 'orbax' / 'checksum.json').read_text() for folder in (workdir, hybrid)]
    assert checksums[0] == checksums[1]
    losses = [[row['loss'] for row in rows(folder / 'metrics.jsonl', 'train')] for folder in (workdir, hybrid)]
    assert losses[0] == losses[1]


def test_evaluation_uses_only_masked_rows(hybrid: pathlib.Path):
    train, heldout = (examples_of(hybrid, split).batch(np.arange(64)) for split in ('train', 'heldout'))
    assert train['causal'].any() and not {'causal', 'sequence_ids'} & heldout.keys()


@pytest.mark.slow
def test_a_mesh_gives_the_same_losses(program: Program, hybrid: pathlib.Path, tmp_path: pathlib.Path):
    changes = ('--config.mesh.preset=fsdp_tensor2', '--config.grad_accum_steps=2', '--config.export=False')
    program.run(f'--workdir={tmp_path}', *HYBRID, *changes, devices=4)
    losses = [[row['loss'] for row in rows(folder / 'metrics.jsonl', 'train')] for folder in (tmp_path, hybrid)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_the_model_predicts_from_the_position_before(hybrid: pathlib.Path):
    bert = bertjax.load(hybrid)
    assert bert.config.shifted_predictions and 'masked words, each predicted at the position before it' in str(bert)
    text = 'the river [MASK] under the house.'
    batch = bert.batch([text])
    (position,) = np.flatnonzero(batch['input_ids'][0] == bert.tokenizer.mask_id)
    logits = np.asarray(bert.apply(bert.params, {**batch, 'masked_positions': np.array([[position]])})['mlm_logits'])[
        0, 0
    ]
    hidden = np.asarray(bert.apply(bert.params, batch)['hidden'])
    head = bert._model.module.apply({'params': bert.params}, hidden[:, position - 1 : position], method=_logits)
    np.testing.assert_allclose(logits, np.asarray(head)[0, 0, : len(logits)], rtol=1e-5, atol=1e-5)
    filled = bert.fill(text, top_k=3)
    best = np.argsort(-logits)[:3]
    assert [entry['token'] for entry in filled] == [bert.tokenizer.pieces[i] for i in best]
    assert bert.score('the river runs.')['log_likelihood'] < 0


def _logits(bert, hidden):
    return bert.mlm(hidden, bert.encoder.token_embedding())


@pytest.mark.slow
def test_other_exports_are_refused(hybrid: pathlib.Path, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r'hf for a model with model\.shifted_predictions True.* only orbax records'):
        bertjax.load(hybrid).save(tmp_path / 'hf', format='hf')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('export_formats=hf', 'config.model.shifted_predictions: found True with hf in config.export_formats, '),
        ('pairs.mode=nsp', 'config.pairs.mode: found nsp with config.masking.causal_share=0.5, '),
        ('model.attention=flash_tpu', "config.model.attention: found 'flash_tpu' (it does not support causal and "),
    ],
)
def test_conflicting_settings_are_refused(program: Program, tmp_path: pathlib.Path, change: str, message: str):
    assert program.error(f'--workdir={tmp_path}', *HYBRID, f'--config.{change}').startswith(f'error: {message}')
