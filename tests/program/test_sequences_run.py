"""Pre-training on sequences that are not text, from medical codes to a model that transformers loads."""

import json
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from running import EXTRACT, SMALL, Program, copy_workdir, rows

from bertjax.pretrain.vocabulary import load_configured_tokenizer

QUICK = tuple(flag for flag in SMALL if 'vocab' not in flag and 'model' not in flag)
RECIPE = {'recipe': 'configs/sequences.py', 'small': False}
MODEL = ('--config.model.width=32', '--config.model.mlp_dim=64', '--config.model.num_segments=3')


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with patients who have codes of one group, the list of codes, and an embedding matrix."""
    folder, rng = tmp_path_factory.mktemp('codes'), np.random.default_rng(0)
    lines = []
    for _ in range(150):
        group = rng.integers(4)
        visits = [[f'g{group}.{code}' for code in rng.integers(0, 9, 5)] for _ in range(3)]
        lines.append(json.dumps({'codes': visits, 'segments': [0, 1, 2]}))
    (folder / 'patients.jsonl').write_text('\n'.join(lines), encoding='utf-8')
    (folder / 'codes.txt').write_text('\n'.join(f'g{g}.{c}' for g in range(4) for c in range(9)), encoding='utf-8')
    np.save(folder / 'matrix.npy', rng.normal(0, 0.02, (36, 32)).astype(np.float32))
    return folder


def arguments(data: pathlib.Path, workdir: pathlib.Path) -> tuple[str, ...]:
    return (
        f'--workdir={workdir}', f'--config.corpus={data}/patients.jsonl', f'--config.tokenizer={data}/codes.txt',
        '--config.corpus_options.segments=3', f'--config.embeddings={data}/matrix.npy',
        '--config.steps=2', '--config.eval_every=0', '--config.learning_rate=1e-6', *QUICK, *MODEL,
    )  # fmt: skip


@pytest.fixture(scope='module')
def codes_run(program: Program, data: pathlib.Path) -> pathlib.Path:
    out = program.run(*arguments(data, data / 'run'), **RECIPE).stdout
    assert 'symbols vocabulary of 41' in out and '36 token embeddings are initialized from' in out
    return data / 'run'


@pytest.mark.slow
def test_a_model_of_codes_loads_in_transformers(data: pathlib.Path, codes_run: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    exported = codes_run / 'export' / 'hf'
    config = json.loads((exported / 'config.json').read_text())
    assert config['type_vocab_size'] == 3 and config['vocab_size'] == 41
    table = safetensors.numpy.load_file(exported / 'model.safetensors')['bert.embeddings.word_embeddings.weight']
    np.testing.assert_allclose(table[5:], np.load(data / 'matrix.npy'), atol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert tokenizer('g0.0 g3.8')['input_ids'] == [2, 5, 40, 3]
    assert rows(codes_run / 'metrics.jsonl', 'heldout')[0]['mlm_loss'] == pytest.approx(np.log(41), rel=0.05)


@pytest.mark.slow
def test_a_run_resumes_without_its_matrix_and_list_of_codes(
    program: Program, data: pathlib.Path, codes_run: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(codes_run, tmp_path / 'run')
    more = ('--config.embeddings=gone.npy', '--config.tokenizer=gone.txt', '--config.steps=3')
    assert 'continuing at step 2 of 3' in program.run(*arguments(data, workdir), *more, **RECIPE).stdout


def test_a_saved_vocabulary_may_have_any_name(data: pathlib.Path, tmp_path: pathlib.Path):
    settings = SimpleNamespace(vocab=SimpleNamespace(family='symbols'))
    tokenizer = load_configured_tokenizer(settings, str(data / 'codes.txt'))
    tokenizer.save(tmp_path / 'codes.v1')
    assert load_configured_tokenizer(settings, str(tmp_path / 'codes.v1')).fingerprint == tokenizer.fingerprint


def test_mistakes_with_sequences_are_errors(program: Program, data: pathlib.Path, tmp_path: pathlib.Path):
    flags = arguments(data, tmp_path / 'run')
    line = program.error(*flags, '--config.corpus_options.segments=4', **RECIPE)
    assert 'config.corpus_options.segments: found 4, expected at most config.model.num_segments = 3' in line
    line = program.error(*flags, '--config.corpus_options.segments=2', **RECIPE)
    assert 'patients.jsonl:1: found the segment type 2' in line
    np.save(tmp_path / 'wide.npy', np.zeros((41, 16), np.float32))
    line = program.error(*flags, f'--config.embeddings={tmp_path}/wide.npy', **RECIPE)
    assert 'a matrix of shape (41, 16), expected (41, 32)' in line
    np.save(tmp_path / 'nan.npy', np.full((41, 32), np.nan, np.float32))
    assert 'nan or inf in row 0' in program.error(*flags, f'--config.embeddings={tmp_path}/nan.npy', **RECIPE)
    (tmp_path / 'text.npy').write_text('no matrix')
    assert 'no matrix (' in program.error(*flags, f'--config.embeddings={tmp_path}/text.npy', **RECIPE)
    (tmp_path / 'zip.npy').write_bytes(b'PK\3\4zzzz')
    assert 'no matrix (' in program.error(*flags, f'--config.embeddings={tmp_path}/zip.npy', **RECIPE)
    train = (*flags, '--config.tokenizer=', '--config.embeddings=')
    line = program.error(*train, '--config.corpus_options.format=ids', **RECIPE)
    assert 'the vocabulary of the ids in the corpus' in line
    line = program.error(*train, '--config.vocab.family=wordpiece', **RECIPE)
    assert 'config.vocab.family: found wordpiece with config.corpus_options.format=symbols, expected symbols' in line


@pytest.mark.slow
def test_records_of_unknown_symbols_are_reported(program: Program, codes_run: pathlib.Path, tmp_path: pathlib.Path):
    """Without spaces, a sequence is a single symbol that the vocabulary lacks."""
    texts = [f'g{i % 4}.{i % 9}{" " * (i < 30)}g{i % 4}.{i % 7}' for i in range(40)]
    table = [f'{text}\t{"ab"[i % 2]}' for i, text in enumerate(texts)]
    (tmp_path / 'train.tsv').write_text('\n'.join(['text\tlabel', *table]))
    (tmp_path / 'dev.tsv').write_text('\n'.join(['text\tlabel', *table[:20]]))
    (tmp_path / 'texts.txt').write_text('\n'.join(texts))
    note = '14.3% of the pieces are [UNK], and 10 of 40 records are only [UNK]: separate symbols by spaces, '
    classify = (f'--config.init={codes_run}', f'--config.data={tmp_path}', '--config.epochs=1', '--config.seq_len=16')
    out = program.run(f'--workdir={tmp_path}/run', *classify, recipe='configs/classify.py', small=False).stdout
    assert f'train: {note}' in out and out.count('of the pieces') == 1  # dev has no unknown symbols
    out = program.run(f'--workdir={codes_run}', f'--config.input={tmp_path}/texts.txt', **EXTRACT).stdout
    assert f'\n{note}' in out


@pytest.mark.slow
def test_rows_beyond_the_trained_positions_are_reported(
    program: Program, codes_run: pathlib.Path, tmp_path: pathlib.Path
):
    table = [f'{" ".join(f"g{i % 4}.{j % 9}" for j in range(50))}\t{"ab"[i % 2]}' for i in range(20)]
    (tmp_path / 'train.tsv').write_text('\n'.join(['text\tlabel', *table]))
    flags = (f'--config.init={codes_run}', f'--config.data={tmp_path}', '--config.steps=1', '--config.export=False')
    for length, warns in ((64, True), (32, False)):
        run = (f'--workdir={tmp_path}/{length}', f'--config.seq_len={length}')
        out = program.run(*flags, *run, recipe='configs/classify.py', small=False).stdout
        assert ('rows have up to 52 tokens, but those of the pre-training had 32, ' in out) == warns
