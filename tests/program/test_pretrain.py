"""A pre-training run from text files to the exported model, and the contents of its workdir."""

import json
import math
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
from golden_files import without_times
from running import RUN, SMALL, Program, rows

ROW = {
    'step',
    'split',
    'phase',
    'examples',
    'loss',
    'mlm_loss',
    'mlm_accuracy',
    'nsp_loss',
    'nsp_accuracy',
    'perplexity',
}
TRAIN_ROW = ROW | {'grad_norm', 'param_norm', 'update_norm', 'learning_rate', 'sequences_per_s', 'tokens_per_s', 'mfu'}
TRAIN_ROW |= {'data_wait', 'skipped', 'host_memory', 'device_memory'}


def test_the_workdir_has_its_documented_files(trained: pathlib.Path):
    for name in ('config.json', 'metrics.jsonl', 'ledger.jsonl', 'summary.json', 'export/hf/model.safetensors'):
        assert (trained / name).is_file(), name
    for name in ('tokenizer', 'store', 'checkpoints/24', 'tensorboard', 'export/orbax/params'):
        assert (trained / name).is_dir(), name
    assert len(list(trained.rglob('model.safetensors'))) == 1


def test_metrics_rows_have_their_keys(trained: pathlib.Path):
    heldout, train = rows(trained / 'metrics.jsonl', 'heldout'), rows(trained / 'metrics.jsonl', 'train')
    assert [row['step'] for row in heldout] == [0, 8, 16, 24]
    assert [row['step'] for row in train] == [4, 8, 12, 16, 20, 24]
    for row in heldout:
        assert set(row) == ROW
        assert row['perplexity'] == pytest.approx(math.exp(row['mlm_loss']))
        assert row['loss'] == pytest.approx(row['mlm_loss'] + row['nsp_loss'])
    for row in train:
        assert set(row) >= TRAIN_ROW
        assert row['examples'] == 8 * row['step']
        assert row['mfu'] is None and row['skipped'] == 0
    assert 'NaN' not in (trained / 'metrics.jsonl').read_text()


def test_the_model_learns(trained: pathlib.Path):
    heldout = rows(trained / 'metrics.jsonl', 'heldout')
    assert heldout[-1]['mlm_loss'] < heldout[0]['mlm_loss'] - 0.5


def test_ledger_names_every_example_once(trained: pathlib.Path):
    ledger = rows(trained / 'ledger.jsonl')
    assert ledger == [{'step': i + 1, 'phase': 0, 'first': 8 * i, 'count': 8} for i in range(24)]


def test_newest_and_best_checkpoints_are_kept(trained: pathlib.Path):
    steps = {int(path.name) for path in (trained / 'checkpoints').iterdir()}
    losses = {row['step']: row['loss'] for row in rows(trained / 'metrics.jsonl', 'heldout') if row['step']}
    assert steps == {20, 24, min(losses, key=losses.get)}


def test_the_run_prints_and_summarizes_its_results(trained: pathlib.Path):
    text = (trained / 'stdout.txt').read_text(encoding='utf-8')
    for part in ('held-out text', 'output files', 'what to run next'):
        assert part in text, part
    for part in ('weight decay', 'mesh', 'attention'):  # only in the log, see below
        assert part not in text, part
    after = text[text.index('what to run next') :]
    assert f"(needs the extra 'plot'):\n    {sys.executable} -m bertjax.main --config=configs/pretrain_tiny.py" in after
    assert '--config.run=plot' in after and '--config=configs/classify.py' in after and f'init={trained}' in after
    assert '--config.corpus' not in after  # the corpus of the finished run is not suggested again
    assert 'a model without context reaches an MLM loss of ' in text and 'and an NSP accuracy of 0.' in text
    summary = json.loads((trained / 'summary.json').read_text(encoding='utf-8'))
    assert summary['heldout_first']['step'] == 0 and summary['heldout_last']['step'] == 24
    assert all(item['filled'] and item['was'] for item in summary['filled_masks']) and summary['filled_masks']
    goodput = summary['goodput']
    printed = re.search(r'\ngoodput (\d+\.\d)% of 0:.*; the rest: ', text)
    assert float(printed[1]) == pytest.approx(100 * goodput['share'], abs=0.06)
    assert 0 < goodput['share'] < 1 and {'start', 'step', 'data', 'evaluation', 'save'} <= set(goodput['seconds'])


@pytest.mark.slow
def test_a_failing_writer_does_not_stop_training(program: Program, tmp_path: pathlib.Path):
    """The folder of TensorBoard cannot be created because a file has its name."""
    (tmp_path / 'tensorboard').touch()
    short = ('--config.steps=4', '--config.eval_every=0', '--config.export=False')
    result = program.run(f'--workdir={tmp_path}', *short)
    (warning,) = [line for line in result.stderr.splitlines() if 'the training continues' in line]
    assert warning.startswith(f'warning: {tmp_path / "tensorboard"} failed')
    assert [row['step'] for row in rows(tmp_path / 'metrics.jsonl')] == [0, 4, 4]


@pytest.mark.slow
def test_two_equal_runs_write_equal_bytes(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    program.spawn(f'--workdir={tmp_path}', *RUN)
    for name in ('config.json', 'ledger.jsonl', 'store/manifest.json'):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes(), name
    summaries = [(folder / 'summary.json').read_bytes() for folder in (tmp_path, trained)]
    assert without_times(summaries[0]) == without_times(summaries[1])
    for path in sorted((trained / 'export' / 'hf').iterdir()):
        assert (tmp_path / 'export' / 'hf' / path.name).read_bytes() == path.read_bytes(), path.name


def test_transformers_loads_the_export_and_gets_the_same_losses(trained: pathlib.Path):
    torch = pytest.importorskip('torch', reason="needs the extra 'test'")
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    from bertjax.corpus.store import open_store
    from bertjax.data.masking import MaskOptions
    from bertjax.data.pairs import PairOptions
    from bertjax.data.pretraining import PretrainingExamples
    from bertjax.pretrain.examples import HELDOUT_SEED
    from bertjax.text.tokenizer import load_tokenizer

    directory = trained / 'export' / 'hf'
    model, info = transformers.BertForPreTraining.from_pretrained(directory, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'] and not info['mismatched_keys']
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer = load_tokenizer(str(trained / 'tokenizer'))
    text = 'The old river sings under a green stone.'
    assert peer_tokenizer(text, add_special_tokens=False)['input_ids'] == tokenizer.encode([text])[0].tolist()

    split = open_store(trained / 'store', tokenizer_fingerprint=tokenizer.fingerprint).split('heldout')
    examples = PretrainingExamples(
        split, tokenizer, seq_len=32, max_predictions=5, pairs=PairOptions(plans=2), masking=MaskOptions(),
        seed=HELDOUT_SEED, phase=0, cache_dir=None,
    )  # fmt: skip
    last = rows(trained / 'metrics.jsonl', 'heldout')[-1]
    batch = examples.batch(np.arange(min(32, examples.cycle_length)))
    labels = np.full(batch['input_ids'].shape, -100)
    row, prediction = np.nonzero(batch['masked_weights'])
    labels[row, batch['masked_positions'][row, prediction]] = batch['masked_ids'][row, prediction]
    tensor = lambda name: torch.tensor(batch[name], dtype=torch.long)  # noqa: E731
    model.eval()
    with torch.no_grad():
        out = model(
            input_ids=tensor('input_ids'),
            token_type_ids=tensor('segment_ids'),
            attention_mask=tensor('attention_mask'),
        )
    mlm = torch.nn.functional.cross_entropy(out.prediction_logits.flatten(0, 1), torch.tensor(labels).flatten())
    nsp = torch.nn.functional.cross_entropy(out.seq_relationship_logits, tensor('nsp_labels'))
    assert mlm.item() == pytest.approx(last['mlm_loss'], rel=1e-5)
    assert nsp.item() == pytest.approx(last['nsp_loss'], rel=1e-5)


def test_export_again_gives_the_same_model(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    copy = tmp_path / 'run'
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / 'export')
    result = program.run(f'--workdir={copy}', '--config.run=export')
    assert 'step 24 exported' in result.stdout
    first = {path.name: path.read_bytes() for path in (trained / 'export' / 'hf').iterdir()}
    assert {path.name: path.read_bytes() for path in (copy / 'export' / 'hf').iterdir()} == first
    program.run(f'--workdir={copy}', '--config.run=export', '--config.card.license=mit', '--config.card.language=en')
    again = {path.name: path.read_bytes() for path in (copy / 'export' / 'hf').iterdir()}
    assert {name for name in first if first[name] != again[name]} == {'README.md'}
    assert again['README.md'].startswith(b'---\nlanguage:\n- en\nlibrary_name: transformers\nlicense: mit\n')


def test_a_finished_run_started_again_trains_no_step(
    program: Program, repository: pathlib.Path, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """The recipe is in another folder, and its flag has another spelling; the suggested commands use both."""
    copy, recipe = tmp_path / 'run', tmp_path / 'my recipes' / 'tiny.py'
    shutil.copytree(trained, copy)
    recipe.parent.mkdir()
    shutil.copy(repository / 'configs' / 'pretrain_tiny.py', recipe)
    arguments = ('--config', f'{recipe}:adam', f'--config.corpus={program.corpus}', *SMALL)
    result = program.run(*arguments, f'--workdir={copy}', *RUN, '--verbosity=1', recipe='', small=False)
    assert f"    bertjax --config='{recipe}:adam' --workdir={copy} --config.run=plot" in result.stdout
    assert '    bertjax --config=configs/classify.py ' in result.stdout
    for line in (
        'mesh data=1 x fsdp=1 x tensor=1, attention: dot_product',
        'weight decay on 12 ',
        'no weight decay on 18 ',
    ):
        assert re.search(f'^info: .*{line}', result.stderr, re.MULTILINE)
    assert 'debug: ' not in result.stderr  # JAX logs at this level
    assert 'all 24 steps are done' in result.stdout and 'continuing' not in result.stdout
    assert (copy / 'ledger.jsonl').read_bytes() == (trained / 'ledger.jsonl').read_bytes()
    assert (copy / 'metrics.jsonl').read_bytes() == (trained / 'metrics.jsonl').read_bytes()


@pytest.mark.slow
def test_another_run_starts_from_an_export(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    result = program.run(
        f'--workdir={tmp_path}', f'--config.init={trained}', '--config.steps=1', '--config.learning_rate=1e-9'
    )
    assert 'starting from' in result.stdout
    first = rows(tmp_path / 'metrics.jsonl', 'heldout')[0]
    assert first['step'] == 0
    assert first['mlm_loss'] == pytest.approx(rows(trained / 'metrics.jsonl', 'heldout')[-1]['mlm_loss'], rel=1e-5)
    weights = safetensors.numpy.load_file(tmp_path / 'export/hf/model.safetensors')
    before = safetensors.numpy.load_file(trained / 'export/hf/model.safetensors')
    assert weights.keys() == before.keys()
    assert all(np.allclose(weights[name], before[name], atol=1e-6) for name in weights)


@pytest.mark.slow
def test_two_phases_train_on_a_mesh(program: Program, tmp_path: pathlib.Path):
    result = program.run(
        f'--workdir={tmp_path}',
        '--verbosity=1',
        '--config.steps=10',
        '--config.model.dtype=float32',
        '--config.model.num_heads=2',
        '--config.model.scan_layers=True',
        '--config.mesh.fsdp=2',
        '--config.eval_every=0',
        '--config.export=False',
        '--config.phases[0].seq_len=32',
        '--config.phases[0].max_predictions=5',
        '--config.phases[1].seq_len=64',
        '--config.phases[1].max_predictions=10',
        '--config.phases[1].reset_optimizer=True',
        recipe='configs/pretrain_base.py',
        devices=4,
    )
    assert 'data=2 x fsdp=2 x tensor=1' in result.stderr
    ledger = rows(tmp_path / 'ledger.jsonl')
    assert [(row['step'], row['phase'], row['first']) for row in ledger] == [
        *((step, 0, 8 * (step - 1)) for step in range(1, 10)),
        (10, 1, 0),
    ]
    assert rows(tmp_path / 'metrics.jsonl', 'heldout')[-1]['phase'] == 1


@pytest.mark.slow
def test_each_corpus_of_a_mixture_has_a_store(program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path):
    other = tmp_path / 'other.txt'
    other.write_text(corpus.read_text(encoding='utf-8').replace('river', 'ocean'), encoding='utf-8')
    result = program.run(
        f'--workdir={tmp_path / "run"}', f'--config.corpus={corpus}=3,{other}=1', '--config.run=corpus'
    )
    assert '0.75 of the examples' in result.stdout
    assert (tmp_path / 'run/store/0/manifest.json').exists() and (tmp_path / 'run/store/1/manifest.json').exists()
    other.write_text('A river. An ocean.\n', encoding='utf-8')
    result = program.run(f'--workdir={tmp_path / "run"}', f'--config.corpus={corpus}=1e9,{other}=1', status=2)
    assert f'{other}, 0.000244 of the examples' in result.stdout  # at least one of 4,096
    assert f'error: config.corpus: found in {other}: only one document' in result.stderr


@pytest.mark.slow
def test_a_run_keeps_its_mixture(program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path):
    """Another mixture is refused before a store is built, and before the record of a finished run changes."""
    workdir, mixture = tmp_path / 'run', f'--config.corpus={corpus}=3,pydoc:=1'
    flags = (f'--workdir={workdir}', '--config.steps=2', '--config.export=False', '--config.corpus_options.heldout=0')
    program.run(*flags, mixture)
    config = (workdir / 'config.json').read_bytes()
    for other in (f'{mixture},{corpus}=1', f'--config.corpus={corpus}=1,pydoc:=1'):
        assert ' as in the checkpoint in ' in program.error(*flags, other)
    assert {path.name for path in (workdir / 'store').iterdir()} <= {'0', '1', 'plans'}
    assert (workdir / 'config.json').read_bytes() == config
    assert 'all 2 steps are done' in program.run(*flags, f'--config.corpus={corpus}=6,pydoc:=2').stdout
