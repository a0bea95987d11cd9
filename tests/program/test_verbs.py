"""The verbs beside pretrain, and the ways to give a vocabulary, a store and a duration."""

import json
import pathlib
import time

import pytest
from running import GLUE, Program, rows


@pytest.fixture(scope='module')
def built(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A workdir with a vocabulary and a store, by run=corpus."""
    workdir = tmp_path_factory.mktemp('built')
    result = program.run(f'--workdir={workdir}', '--config.run=corpus')
    assert 'Documents' in result.stdout and 'documents held out' not in result.stderr
    assert f'--config.data={workdir / "store"}' in result.stdout
    return workdir


def test_a_ready_store_and_vocabulary_are_used(program: Program, built: pathlib.Path, tmp_path: pathlib.Path):
    """A quarter of an epoch in place of steps: that share of a pass, over the batch size."""
    before = {path: path.read_bytes() for path in (built / 'store').rglob('*') if path.is_file()}
    result = program.run(
        f'--workdir={tmp_path}',
        f'--config.data={built / "store"}',
        f'--config.tokenizer={built / "tokenizer"}',
        '--config.epochs=0.25',
        '--config.eval_every=0',
        '--config.checkpoint_every=0',
    )
    assert 'training a wordpiece' not in result.stdout
    assert not (tmp_path / 'store' / 'manifest.json').exists()
    assert {path: path.read_bytes() for path in (built / 'store').rglob('*') if path.is_file()} == before
    steps = json.loads((tmp_path / 'config.json').read_text())['steps']
    assert [row['step'] for row in rows(tmp_path / 'metrics.jsonl', 'heldout')] == [0, steps]
    per_pass = float(result.stdout.split('examples (nsp): ')[1].split(' a pass')[0].replace(',', ''))
    assert steps == pytest.approx(0.25 * per_pass / 8, abs=1)


def test_another_tokenizer_than_the_stores_is_refused(program: Program, built: pathlib.Path, tmp_path: pathlib.Path):
    program.run(f'--workdir={tmp_path}', '--config.run=vocab', '--config.vocab.size=60')
    error = program.error(
        f'--workdir={tmp_path / "run"}', f'--config.data={built / "store"}', f'--config.tokenizer={tmp_path}/tokenizer'
    )
    assert 'tokenizer' in error


@pytest.mark.parametrize('model_type', ['unigram', pytest.param('bpe', marks=pytest.mark.slow)])
def test_sentencepiece_from_vocabulary_to_export(program: Program, tmp_path: pathlib.Path, model_type: str):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    program.run(
        f'--workdir={tmp_path}',
        '--config.vocab.family=sentencepiece',
        f'--config.vocab.model_type={model_type}',
        '--config.vocab.size=120',
        '--config.vocab.unused=3',
        '--config.steps=1',
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'export' / 'hf')
    from bertjax.text.tokenizer import load_tokenizer

    ours, text = load_tokenizer(str(tmp_path / 'tokenizer')), 'the old river sings under a green stone.'
    assert ours.family == 'sentencepiece' and ours.pieces[1:4] == ['[unused0]', '[unused1]', '[unused2]']
    assert theirs(text, add_special_tokens=False)['input_ids'] == ours.encode([text])[0].tolist()


def test_plot_draws_the_curve(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    pytest.importorskip('matplotlib', reason="needs the extra 'plot'")
    (tmp_path / 'metrics.jsonl').write_bytes((trained / 'metrics.jsonl').read_bytes())
    program.run(f'--workdir={tmp_path}', '--config.run=plot')
    picture = (tmp_path / 'learning_curve.png').read_bytes()
    assert picture.startswith(b'\x89PNG') and len(picture) > 10_000


def test_plot_draws_a_fine_tuning(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    pytest.importorskip('matplotlib', reason="needs the extra 'plot'")
    (tmp_path / 'metrics.jsonl').write_bytes((tuned / 'metrics.jsonl').read_bytes())
    program.run(f'--workdir={tmp_path}', '--config.run=plot', **GLUE)
    picture = (tmp_path / 'learning_curve.png').read_bytes()
    assert picture.startswith(b'\x89PNG') and len(picture) > 10_000


def test_a_verb_with_the_wrong_kind_of_recipe(program: Program, tmp_path: pathlib.Path):
    assert 'config.task' in program.error(f'--workdir={tmp_path}', '--config.run=finetune')
    assert 'config.corpus' in program.error(f'--workdir={tmp_path}', '--config.run=corpus', **GLUE)


def test_one_workdir_has_one_process(program: Program, tmp_path: pathlib.Path):
    first = program.start(f'--workdir={tmp_path}', '--config.steps=400')
    try:
        while first.poll() is None and not (tmp_path / 'metrics.jsonl').exists():
            time.sleep(0.05)
        assert 'another process' in program.error(f'--workdir={tmp_path}', '--config.steps=400')
    finally:
        first.kill()
        first.communicate()
