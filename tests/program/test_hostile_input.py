"""Broken input, odd names and closed streams give a one-line error or the usual result."""

import json
import os
import pathlib
import runpy
import subprocess

import numpy as np
import pytest
from running import GLUE, NO_SAVES, RUN, Program

from bertjax.config.plain import dump
from bertjax.corpus.store import open_store
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.text.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ('spec', 'parts'),
    [
        ('{}/pipe', ('config.corpus', 'a pipe')),
        ('{}/**/*.rst', ('config.corpus', 'no file for')),
        ('http://example.org/a.txt', ('config.corpus', 'the address')),
        ('{}/two\nlines\x1b[2J', (r'two\nlines\x1b[2J',)),
        ('{}/caf\udce9', ('command line', r'caf\xe9')),
    ],
)
def test_a_path_without_text_is_an_error(program: Program, tmp_path: pathlib.Path, spec: str, parts: tuple[str, ...]):
    os.mkfifo(tmp_path / 'pipe')
    error = program.error(f'--workdir={tmp_path / "run"}', f'--config.corpus={spec.format(tmp_path)}')
    for part in parts:
        assert part in error, error
    assert error.isprintable()


def _odd(shape: str) -> str:
    word = lambda i: f'{"abcdefgh"[i % 8]}{"ijklmnop"[i // 8 % 8]}{i % 5}'  # noqa: E731
    words, sentence = [word(i * i + i // 3) for i in range(1500)], 'The river runs over green stone.'
    return {
        'one sentence a document': '\n\n'.join(f'{" ".join(words[i : i + 9])}.' for i in range(200)),
        'one word a document': '\n\n'.join(words),
        'one document': f'{sentence} ' * 300,
        'one document without an end': ' '.join(words),
        'no spaces': '\n\n'.join(''.join(words[i : i + 25]) for i in range(200)),
        'all duplicates': '\n\n'.join([f'{sentence} {sentence}'] * 100),
    }[shape]


@pytest.mark.parametrize(
    ('shape', 'mode'),
    [
        ('one sentence a document', 'nsp'),
        ('one word a document', 'nsp'),
        ('one document', 'sop'),
        ('one document without an end', 'sop'),
        ('one document without an end', 'doc_sentences'),
        ('no spaces', 'nsp'),
        ('all duplicates', 'nsp'),
    ],
)
def test_a_corpus_of_an_odd_shape_has_examples(program: Program, tmp_path: pathlib.Path, shape: str, mode: str):
    (tmp_path / 'text.txt').write_text(_odd(shape))
    keys = (f'--config.corpus={tmp_path / "text.txt"}', f'--config.pairs.mode={mode}', '--config.vocab.size=200')
    program.run(f'--workdir={tmp_path / "run"}', *keys, '--config.run=corpus')
    tokenizer = load_tokenizer(tmp_path / 'run' / 'tokenizer')
    examples = PretrainingExamples(
        open_store(tmp_path / 'run' / 'store').split('train'), tokenizer, seq_len=32, max_predictions=5,
        pairs=PairOptions(mode=mode), masking=MaskOptions(), seed=0, phase=0, cache_dir=None,
    )  # fmt: skip
    assert (examples.batch(np.arange(16))['masked_weights'].sum(1) > 0).all()
    single = mode in ('nsp', 'sop') and shape not in ('one document', 'all duplicates')
    assert (examples.report['one_sentence'] == 1) == single


@pytest.mark.slow
@pytest.mark.parametrize(('shape', 'mode'), [('one word a document', 'nsp'), ('one document without an end', 'sop')])
def test_a_corpus_of_an_odd_shape_trains_to_the_export(program: Program, tmp_path: pathlib.Path, shape: str, mode: str):
    (tmp_path / 'text.txt').write_text(_odd(shape))
    keys = (f'--config.corpus={tmp_path / "text.txt"}', f'--config.pairs.mode={mode}', '--config.vocab.size=200')
    result = program.run(f'--workdir={tmp_path / "run"}', *keys, '--config.steps=2')
    assert 'warning: all chunks have a single sentence' in result.stdout
    assert (tmp_path / 'run/export/hf/model.safetensors').exists()


def test_a_corpus_with_links_and_odd_names_is_read(program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path):
    folder = tmp_path / 'texts'
    folder.mkdir()
    os.symlink('.', folder / 'loop')
    os.symlink(corpus, os.fsencode(folder) + b'/caf\xe9.txt')
    (folder / 'keys.jsonl').write_text('{"\\ud800\\u001b[2J": 1}\n' + '{"a":' + '[' * 5000 + '\n')
    arguments = ('--config.corpus_options.format=auto', f'--config.corpus={folder}', '--config.run=corpus')
    result = program.run(f'--workdir={tmp_path / "run"}', *arguments)
    assert r'\ud800\x1b[2J' in result.stdout and '\x1b' not in result.stdout
    assert 'which a link reaches a second time' in result.stderr
    assert json.loads((tmp_path / 'run' / 'store' / 'manifest.json').read_text('utf-8'))['inputs']['count'] == 2


@pytest.mark.parametrize('verb', ['evaluate', 'predict', 'export'])
@pytest.mark.parametrize(
    ('file', 'content'),
    [('config.json', '[]'), ('config.json', '{"task": {"kind": "glue"}}'), ('task.json', '{"task": 1}')],
)
def test_a_damaged_workdir_is_an_error(
    program: Program, tmp_path: pathlib.Path, rte: pathlib.Path, verb, file, content
):
    recipe = runpy.run_path(f'{program.repository}/configs/glue.py')['get_config']('rte')
    recipe.data = str(rte)
    (tmp_path / 'config.json').write_text(dump(recipe))
    (tmp_path / 'checkpoints' / '4').mkdir(parents=True)
    (tmp_path / file).write_text(content)
    error = program.error(f'--workdir={tmp_path}', f'--config.run={verb}', f'--config.data={rte}', **GLUE)
    assert f'{tmp_path / file}: ' in error


@pytest.mark.parametrize('key', ['tokenizer', 'init'])
def test_deeply_nested_json_is_an_error(program: Program, tmp_path: pathlib.Path, key: str):
    for name in ('tokenizer.json', 'config.json', 'model.safetensors.index.json'):
        (tmp_path / name).write_text('{"a":' + '[' * 5000)
    assert 'nested too deeply' in program.error(f'--workdir={tmp_path / "run"}', f'--config.{key}={tmp_path}')


@pytest.mark.slow
def test_a_training_ignores_closed_streams(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The run ends with status 0 and the usual bits; tests/test_terminal.py tests other streams of a small program."""
    words = ['python', '-m', 'bertjax.main', *program.arguments(f'--workdir={tmp_path / "run"}', *RUN, NO_SAVES)]
    command = ['bash', '-c', '"$@" >&- 2>&- <&-', *words[:1], *words]
    done = subprocess.run(command, cwd=program.repository, env=program.environment, capture_output=True)
    assert done.returncode == 0
    for name in ('ledger.jsonl', 'export/hf/model.safetensors'):
        assert (tmp_path / 'run' / name).read_bytes() == (trained / name).read_bytes()
