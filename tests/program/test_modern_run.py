"""An encoder like ModernBERT: pre-training, export to transformers, fine-tuning and distillation."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from golden_runs import rewind
from running import GLUE, ONE_LENGTH, SMALL, TUNE, Program, copy_workdir, rows
from safetensors.numpy import load_file
from test_resume import assert_same_run

MODERN = (
    '--config.vocab.family=bpe',
    '--config.vocab.lowercase=False',
    '--config.pairs.mode=full_sentences',
    '--config.packing=True',
    '--config.max_predictions=16',
    '--config.masking.rate=0.3',
    '--config.optimizer.name=stable_adamw',
    '--config.model.num_layers=4',
    '--config.model.num_segments=0',
    '--config.model.mlp=geglu',
    '--config.model.position=rope',
    '--config.model.rope_theta=160000',
    '--config.model.attention_window=8',
    '--config.model.pre_norm=True',
    '--config.model.first_attention_norm=False',
    '--config.model.norm_bias=False',
    '--config.model.projection_bias=False',
    '--config.model.layer_norm_eps=1e-5',
    '--config.model.pooler=transform',
    '--config.model.pooling=mean',
    '--config.model.dropout_sites=attention_output',
    '--config.model.attention_dropout=0',
    '--config.model.init=megatron',
)
RUN = ('--config.steps=12', '--config.checkpoint_every=4', '--config.eval_every=12', '--config.checkpoint_keep=2')
FORMS = ('scanned', 'unrolled')


def _arguments(form: str) -> tuple[str, ...]:
    return (*MODERN, *RUN, f'--config.model.scan_layers={form == "scanned"}')


@pytest.fixture(scope='module')
def form(request: pytest.FixtureRequest) -> str:
    return getattr(request, 'param', 'scanned')


@pytest.fixture(scope='module')
def pretrained(program: Program, once: Callable, form: str) -> pathlib.Path:
    """The workdir of an uninterrupted run in this process; do not write into it."""
    folder = once(f'modern-{form}', lambda folder: program.run(f'--workdir={folder / "run"}', *_arguments(form)))
    return folder / 'run'


@pytest.mark.slow
def test_a_killed_modernbert_run_ends_in_the_same_bits(
    program: Program, pretrained: pathlib.Path, tmp_path: pathlib.Path, form: str
):
    rewind(copy_workdir(pretrained, tmp_path), step=8)
    assert 'continuing at step 8 of 12' in program.run(f'--workdir={tmp_path}', *_arguments(form)).stdout
    assert_same_run(tmp_path, pretrained)


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS, indirect=True)
def test_transformers_computes_the_same_logits(pretrained: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    import torch

    import bertjax

    exported = pretrained / 'export' / 'hf'
    assert json.loads((exported / 'config.json').read_text())['architectures'] == ['ModernBertForMaskedLM']
    peer, info = transformers.AutoModelForMaskedLM.from_pretrained(exported, output_loading_info=True)
    assert not any(info[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys'))
    assert peer.config.mlp_dropout == peer.config.embedding_dropout == 0  # as in the training
    bert = bertjax.load(pretrained)
    ids = np.random.default_rng(0).integers(5, peer.config.vocab_size, (2, 30), np.int32)
    mask = (np.arange(30) < np.array([[30], [17]])).astype(np.int32)
    positions = np.tile(np.arange(30, dtype=np.int32), (2, 1))
    batch = {'input_ids': ids, 'segment_ids': 0 * ids, 'attention_mask': mask, 'masked_positions': positions}
    with torch.no_grad():
        expected = peer.eval()(input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask)).logits
    logits = np.asarray(bert.apply(bert.params, batch)['mlm_logits'])
    np.testing.assert_allclose(logits[mask > 0], expected.numpy()[mask > 0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_task_uses_the_mlm_head_as_pooler(
    program: Program, rte: pathlib.Path, pretrained: pathlib.Path, tmp_path: pathlib.Path
):
    few = (*TUNE, ONE_LENGTH, '--config.steps=4', '--config.epochs=1', '--config.eval_every=4')
    flags = (f'--config.init={pretrained}', f'--config.data={rte}', f'--workdir={tmp_path}', *few)
    out = program.run(*flags, '--config.learning_rate=1e-9', **GLUE).stdout
    assert (
        'newly initialized: head/bias, head/kernel' in out
        and 'pooler' not in out.partition('newly initialized:')[2][:60]
    )
    start, tuned = (load_file(path / 'export' / 'hf' / 'model.safetensors') for path in (pretrained, tmp_path))
    assert json.loads((tmp_path / 'export' / 'hf' / 'config.json').read_text())['architectures'] == [
        'ModernBertForSequenceClassification'
    ]
    shared = tuned.keys() & start.keys()
    assert {'head.dense.weight', 'head.norm.weight', 'model.layers.3.mlp.Wi.weight'} <= shared
    for name in shared:
        np.testing.assert_allclose(tuned[name], start[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_student_is_distilled_from_a_modernbert(program: Program, pretrained: pathlib.Path, tmp_path: pathlib.Path):
    architecture = [x for x in MODERN if '.model.' in x and 'num_layers' not in x]
    student = (*SMALL, *architecture, *MODERN[2:6], '--config.model.num_heads=2')
    steps = ('--config.epochs=0', '--config.steps=4', '--config.checkpoint_every=4', '--config.eval_every=4')
    losses = ('--config.distill.hidden=1', '--config.distill.attention=1', f'--config.distill.teacher={pretrained}')
    flags = (f'--workdir={tmp_path}', f'--config.corpus={program.corpus}', *student, *steps, *losses)
    program.run(*flags, '--config.grad_accum_steps=1', recipe='configs/distilbert.py', small=False)
    last = rows(tmp_path / 'metrics.jsonl', 'heldout')[-1]
    assert all(np.isfinite(last[f'{part}_loss']) for part in ('soft', 'hidden', 'attention', 'mlm'))
    facts = json.loads((tmp_path / 'export' / 'hf' / 'config.json').read_text())
    assert facts['architectures'] == ['ModernBertForMaskedLM'] and facts['num_hidden_layers'] == 2
